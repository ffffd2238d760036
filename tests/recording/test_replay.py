# SPDX-License-Identifier: MIT
"""A recording runs again to the same answers, without what it was recorded with."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from attrs import evolve

from tokenspeed_core.composition.selection import PluginChoice
from tokenspeed_core.errors import ConfigError, EngineError, PluginError
from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.recording.replay import last_frames, replay
from tokenspeed_core.recording.tape import LAST_ROUNDS, Frame, Header, TapeWriter
from tokenspeed_core.testing import (
    EngineFixture,
    EngineSetup,
    RowFault,
    Tiers,
    WorldFixture,
    request,
    thread_meshes,
)
from tokenspeed_core.testing.conformance.mirror_plan import Companion
from tokenspeed_hookspecs import (
    AdmissionStage,
    ControlRequest,
    Engine,
    Hold,
    Pass,
    Plugin,
    Request,
    Round,
    Verdict,
    hookimpl,
)

SEEDS, TIMES = 20, 5


class Threaded(Plugin):
    """A stage whose requests pass when a thread says so: in no particular round."""

    name = "threaded"

    def __init__(self, options: object, engine: Engine) -> None:
        super().__init__(options, engine)
        self.ready: set[str] = set()

    @hookimpl
    def admission_stages(self) -> Sequence[AdmissionStage]:
        return [self]

    def enter(self, request: Request) -> Verdict:
        """Begin to work."""
        name = request.request_id
        threading.Timer(0.002, self.ready.add, (name,)).start()
        return Hold()

    def poll(self, held: Sequence[Request]) -> Sequence[int]:
        """What the thread has done."""
        return [int(each.request_id in self.ready) for each in held]

    def settle(self, held: Sequence[Request], agreed: Sequence[int]) -> Sequence[Verdict]:
        """Let pass what is ready."""
        passing = [each for each, code in zip(held, agreed, strict=True) if code]
        assert all(each.request_id in self.ready for each in passing)
        return [Pass() if code else Hold() for code in agreed]

    def leave(self, request_id: str) -> None:
        """Nothing is kept."""


class Failing(Plugin):
    """Ends the engine in its twelfth round."""

    name = "failing"

    @hookimpl
    def planned(self, round: Round) -> None:
        if round.number == 12:
            raise ValueError("twelve")


def _record(path: Path, seed: int, *plugins: type[Plugin]) -> EngineFixture:
    """Traffic with aborts, pauses, retractions and rows that fail; all from a seed."""
    rng = random.Random(seed)
    setup = EngineSetup(
        depth=rng.choice([0, 1, 2]),
        record=str(path),
        tiers=rng.choice(list(Tiers)),
        scheduler={"num_pages": rng.choice([40, 513])},
        plugins=plugins,
    )
    engine = EngineFixture(setup)
    for number in range(12):
        name = f"r{number}"
        engine.add(name, rng.randint(1, 90), budget=rng.randint(1, 12))
        if rng.random() < 0.2:
            fault = RowFault(is_nan=True)
            engine.plane.faults.at_token(name, rng.randrange(5), fault=fault)
        engine.rounds(rng.randint(1, 3))
        if rng.random() < 0.3:
            engine.abort(f"r{rng.randrange(number + 1)}")
        if rng.random() < 0.2:
            engine.put(ControlRequest("pause", {"mode": rng.choice(["keep", "abort"])}))
            engine.rounds(2)
            engine.put(ControlRequest("resume"))
    engine.to_idle()
    engine.rank.stop()
    return engine


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_run_with_faults_replays_alike_each_time(seed: int, tmp_path: Path) -> None:
    """A hundred replays in all: no answer differs, and every token comes again."""
    path = tmp_path / "rounds.rec"
    engine = _record(path, seed, Companion)
    tokens = sum(len(s.tokens) for n in engine.received.ids() for s in engine.received.all_of(n))
    for _ in range(TIMES):
        found = replay(path)
        assert (found.parted, found.failure) == ("", "")
        assert (found.tokens, found.replies) == (tokens, len(engine.received.replies))


def is_over(engine: EngineFixture, request_id: str) -> bool:
    """Whether the request has its end."""
    return engine.received[request_id].finish is not None


def test_a_stage_with_a_thread_passes_in_the_same_rounds(tmp_path: Path) -> None:
    """What a thread did in some round it has done in that round of the replay."""
    path = tmp_path / "rounds.rec"
    engine = EngineFixture(EngineSetup(record=str(path), plugins=(Threaded,)))
    for number in range(5):
        engine.add(f"r{number}", 10, budget=3)
        # A busy machine may not let the thread run for many rounds.
        engine.run_until(partial(is_over, engine, f"r{number}"), max_rounds=5_000_000)
    engine.rank.stop()
    found = replay(path)
    assert (found.parted, found.requests) == ("", 5)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_replays_without_its_peer(rank: int, tmp_path: Path) -> None:
    """Each of two mirrored ranks wrote a file of its own, and what was agreed is in it."""
    path = tmp_path / "rounds.rec"
    setup = EngineSetup(record=str(path), tiers=Tiers.FORCED_RETRACTION, plugins=(Companion,))
    world = WorldFixture(Topology(tp=2), setup, meshes=thread_meshes(2))
    world.put(*(request(f"r{n}", 20 + n, budget=8 + n) for n in range(4)))
    world.run_until(lambda: all(world.engine(0).received[f"r{n}"].finish for n in range(4)))
    world.close()
    found = replay(path if rank == 0 else path.with_suffix(".1.rec"))
    assert (found.parted, found.failure) == ("", "")
    assert found.requests == (4 if rank == 0 else 0)
    assert found.rounds > 8


def test_other_answers_are_told(tmp_path: Path) -> None:
    """A loop that does something else than the recorded one is found in its first such round."""
    path = tmp_path / "rounds.rec"
    _record(path, 1)
    found = replay(path, plugins=(Failing,))
    assert "failed in hook planned of round 12" in found.failure
    found = replay(path, plugins=(Companion,))
    assert found.parted.startswith("round ")


def test_an_engine_that_died_dies_again(tmp_path: Path) -> None:
    """The failure of the recorded engine is the replay's, in the same round."""
    path = tmp_path / "rounds.rec"
    engine = EngineFixture(EngineSetup(record=str(path), plugins=(Failing,)))
    engine.add("a", 10, budget=30)
    with pytest.raises(PluginError):
        engine.rounds(20)
    engine.rank.stop()
    found = replay(path)
    assert (found.rounds, found.parted) == (12, "")
    assert "ValueError: twelve" in found.failure


def test_idle_rounds_take_no_room(tmp_path: Path) -> None:
    """A thousand rounds in which nothing comes are one frame."""
    few, many = (_with_idle_rounds(tmp_path / f"{count}.rec", count) for count in (3, 1003))
    assert len(last_frames(many, 10_000)) == len(last_frames(few, 10_000))
    assert replay(many).rounds == replay(few).rounds + 1000


def _with_idle_rounds(path: Path, count: int) -> Path:
    """A closed recording of one request and so many rounds after it."""
    engine = EngineFixture(EngineSetup(record=str(path)))
    engine.add("a", 10, budget=3)
    engine.run_to_end("a")
    engine.rounds(count)
    engine.rank.stop()
    return path


def test_a_replay_stops_where_it_is_told_and_is_traced(tmp_path: Path) -> None:
    """`--until` ends before a fault, with the rounds up to there in a trace."""
    path, trace = tmp_path / "rounds.rec", tmp_path / "trace.json"
    _record(path, 2)
    found = replay(path, until=9, plugins=[PluginChoice("trace", {"file": str(trace)})])
    assert (found.rounds, found.parted) == (9, "")
    assert '"round 9"' in trace.read_text()


def test_a_file_that_was_cut_ends_there(tmp_path: Path) -> None:
    """A crash in the middle of a frame loses that frame alone."""
    path = tmp_path / "rounds.rec"
    _record(path, 3)
    whole = replay(path).rounds
    path.write_bytes(path.read_bytes()[:-200])
    cut = replay(path)
    assert (cut.parted, cut.is_whole) == ("", False)
    assert 10 < cut.rounds < whole


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_file_is_told(seed: int, tmp_path: Path) -> None:
    """A byte was changed anywhere: nothing is taken for what was recorded behind it."""
    path, dice = tmp_path / "rounds.rec", random.Random(seed)
    _record(path, 3)
    data = bytearray(path.read_bytes())
    data[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    path.write_bytes(data)
    assert re.search("damaged|no recording|no end", _problem(path))


def _problem(path: Path) -> str:
    """What a replay says of a file. A changed length may pass its end."""
    try:
        return "" if replay(path).is_whole else "no end"
    except EngineError as error:
        return str(error)


def test_a_full_file_keeps_the_last_rounds(tmp_path: Path) -> None:
    """Past its limit nothing is written until the end, and then the last rounds."""
    path = tmp_path / "rounds.rec"
    tape = TapeWriter(path, most_bytes=1000)
    tape.header(Header(config="", plugins=(), plane={}))
    for number in range(2000):
        tape.frame(Frame(number, (("m", b"some message"),), (1.0,)))
    tape.close()
    frames = last_frames(path, 10_000)
    assert [frame.number for frame in frames[-LAST_ROUNDS:]] == list(range(1744, 2000))
    assert sum(frame.beyond for frame in frames) == LAST_ROUNDS
    # A record is 78 bytes, the four of its checksum included.
    assert path.stat().st_size < 1000 + 80 * LAST_ROUNDS
    assert path.stat().st_mode & 0o077 == 0, "others may read prompts and options"


def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    """The engine is not composed, and the message names the option."""
    with pytest.raises(ConfigError, match=r"engine\.record: cannot write .*No such file"):
        EngineFixture(EngineSetup(record=str(tmp_path / "gone" / "rounds.rec")))


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    """The message says what was expected."""
    path = tmp_path / "other.txt"
    path.write_text("hello")
    with pytest.raises(EngineError, match="is no recording of this version"):
        replay(path)


def test_a_recording_depends_on_its_traffic_alone(tmp_path: Path) -> None:
    """The same seed gives the same frames, whatever the time."""
    first, second = tmp_path / "a.rec", tmp_path / "b.rec"
    _record(first, 5)
    _record(second, 5)
    frames = [last_frames(path, 10_000) for path in (first, second)]
    timeless = [[evolve(frame, clocks=()) for frame in each] for each in frames]
    assert timeless[0] == timeless[1]
