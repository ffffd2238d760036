# SPDX-License-Identifier: MIT
"""Other people's plugins on simulated ranks: they may hold and refuse, and touch nobody else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest

from tokenspeed_core.cli.main import main
from tokenspeed_core.errors import ConfigError
from tokenspeed_core.testing.conformance.subject import Subject
from tokenspeed_core.testing.simulation.comparing import compare
from tokenspeed_core.testing.simulation.guests import Guests
from tokenspeed_core.testing.simulation.plan import Plan
from tokenspeed_core.testing.simulation.run import SimulationError, simulate
from tokenspeed_hookspecs import (
    AdmittedRequest,
    Batch,
    DataPlane,
    DataPlaneExtension,
    Engine,
    Hold,
    Pass,
    Plugin,
    Refuse,
    Request,
    Round,
    SchedulerSettings,
    StoragePressure,
    StorageSettings,
    StorageTick,
    Verdict,
    hookimpl,
)

SEEDS = range(6)
FEATURES = ({"shout": True}, {"shout": False}, {"shout": "no"})


class Shouting:
    """The device side: whoever shouts gets tokens of its own."""

    name = "megaphone"

    def __init__(self) -> None:
        self.loud: set[str] = set()

    def on_admit(self, requests: Sequence[AdmittedRequest]) -> None:
        """Note who shouts."""
        self.loud.update(each.request_id for each in requests if self.wants(each))

    def on_release(self, request_ids: Sequence[str]) -> None:
        """Forget."""
        self.loud.difference_update(request_ids)

    def wants(self, request: AdmittedRequest) -> bool:
        """Whether a request's tokens are changed."""
        return request.features.get("shout") is True

    def sampled(self, batch: Batch, tokens: npt.NDArray[np.int64]) -> None:
        """Change tokens."""
        for row, name in enumerate(batch.request_ids):
            if name in self.loud and not batch.is_mid_chunk(row):
                tokens[row] += 500


class Megaphone(Plugin):
    """Holds each request until a thread is done with it, refuses some, and changes tokens."""

    name = "megaphone"
    features: ClassVar[tuple[str, ...]] = ("shout",)

    def __init__(self, options: object, engine: Engine) -> None:
        super().__init__(options, engine)
        self.waiting: dict[str, Future[None]] = {}

    @hookimpl
    def extend_data_plane(self, plane: DataPlane) -> Sequence[DataPlaneExtension]:
        return [Shouting()]

    @hookimpl
    def start(self) -> None:
        self.pool = ThreadPoolExecutor(1)

    @hookimpl
    def stop(self) -> None:
        self.pool.shutdown()

    @hookimpl
    def validate_request(self, round: Round) -> Refuse | None:
        assert round.candidate is not None
        asked = round.candidate.features.get("shout", False)
        return None if isinstance(asked, bool) else Refuse("yes or no?", 422)

    @hookimpl
    def admission_stages(self) -> Sequence[Any]:
        return [self]

    def enter(self, request: Request) -> Verdict:
        """Give the thread something to do."""
        self.waiting[request.request_id] = self.pool.submit(lambda: None)
        return Hold()

    def poll(self, held: Sequence[Request]) -> Sequence[int]:
        """Whether it is done; each rank's own thread is at another time."""
        return [int(self.waiting[each.request_id].done()) for each in held]

    def settle(self, held: Sequence[Request], agreed: Sequence[int]) -> Sequence[Verdict]:
        """Let pass what all ranks have done."""
        for each, code in zip(held, agreed, strict=True):
            if code:
                del self.waiting[each.request_id]
        return [Pass() if code else Hold() for code in agreed]

    def leave(self, request_id: str) -> None:
        """Forget."""
        del self.waiting[request_id]


def guests(plugin: type[Plugin], *, patience_s: float = 3.0) -> Guests:
    """A plugin, with requests that it knows."""
    features = FEATURES if plugin.features else ()
    return Guests.of(Subject(plugin=plugin, features=features, patience_s=patience_s))


def test_what_must_hold_holds_whenever_threads_are_done() -> None:
    """Requests that wait for a thread, are refused or get other tokens pass under every fault."""
    plans = [Plan.of(seed, guests(Megaphone)) for seed in SEEDS]
    outcomes = [simulate(plan) for plan in plans]
    assert {each.feature.get("shout") for plan in plans for each in plan.arrivals} > {True, "no"}
    firsts = {tokens[0] for each in outcomes for tokens, _ in each.streams.values() if tokens}
    assert firsts >= {1000, 1500}
    assert sum(len(each.faults) for each in outcomes) > 0


@pytest.mark.parametrize("seed", [2, 9])
def test_answers_do_not_depend_on_how_it_runs(seed: int) -> None:
    """Without the plugin, too, whoever asks nothing of it gets the same."""
    assert compare(Plan.of(seed, guests(Megaphone))) == []


class Overheard(Megaphone):
    """Changes the tokens of those that came after one that shouted."""

    @hookimpl
    def extend_data_plane(self, plane: DataPlane) -> Sequence[DataPlaneExtension]:
        return [Mixed()]


class Mixed(Shouting):
    """Forgets whom it noted."""

    def on_release(self, request_ids: Sequence[str]) -> None:
        """Keep them."""

    def wants(self, request: AdmittedRequest) -> bool:
        """Whoever came later shouts too."""
        return super().wants(request) or bool(self.loud)


class Stale(Megaphone):
    """What it kept of an engine's requests spoils those of the next engine."""

    @hookimpl
    def extend_data_plane(self, plane: DataPlane) -> Sequence[DataPlaneExtension]:
        return [Kept(self.engine.ranks.rank)]


class Kept(Shouting):
    """Prompts that a rank of this number admitted, whichever engine it was of."""

    prompts: ClassVar[set[tuple[int, ...]]] = set()

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank

    def wants(self, request: AdmittedRequest) -> bool:
        """Whether the prompt was there before."""
        prompt = (self.rank, *request.prompt_ids)
        was_there = prompt in self.prompts
        self.prompts.add(prompt)
        return was_there


class OwnClock(Megaphone):
    """Decides by the time of its rank."""

    def settle(self, held: Sequence[Request], agreed: Sequence[int]) -> Sequence[Verdict]:
        """Let pass now and then."""
        return super().settle(held, [int(self.engine.clock() * 200) % 2] * len(held))


class Forgetful(Megaphone):
    """Does not notice that a request left."""

    def leave(self, request_id: str) -> None:
        """Keep it."""

    def settle(self, held: Sequence[Request], agreed: Sequence[int]) -> Sequence[Verdict]:
        """One that it knows already is never let go."""
        return [Hold()] * len(held)


FAULTY: Mapping[type[Plugin], str] = {
    Overheard: "expected|does not begin",
    Stale: "expected|does not begin",
    OwnClock: r"of ranks \d and \d",
    Forgetful: "still at work",
}


@pytest.mark.parametrize("plugin", FAULTY, ids=lambda each: each.__name__)
def test_a_faulty_plugin_is_found(plugin: type[Plugin]) -> None:
    """One that touches other requests, parts ranks, or never lets go fails in a few seeds."""

    def run() -> None:
        for seed in range(30):
            simulate(Plan.of(seed, guests(plugin, patience_s=0.2)))

    with pytest.raises(SimulationError, match=FAULTY[plugin]):
        run()


class Keeper(Plugin):
    """Asks for a store's operations, and so for a host tier; nothing it is asked is done."""

    name = "keeper"

    @hookimpl
    def check_config(self, config: Mapping[str, Any]) -> Sequence[str]:
        return [] if config["scheduler"]["host_pages"] else ["it needs a host tier"]

    @hookimpl
    def configure_scheduler(self, settings: SchedulerSettings) -> None:
        mark = StoragePressure(8, 1 << 20, 1_000_000)
        settings.storage = StorageSettings(
            max_operations=4,
            max_keys_per_operation=16,
            max_host_pages=8,
            metadata_entries=64,
            min_prefetch_tokens=16,
            max_prefetch_tokens=1024,
            wait_timeout_us=1000,
            ready_timeout_us=1000,
            pressure_high=mark,
            pressure_low=StoragePressure(4, 1 << 19, 500_000),
        )

    @hookimpl
    def storage_tick(self, round: Round) -> StorageTick | None:
        return StorageTick(
            now_us=int(round.now * 1_000_000),
            allow_forward=not round.frozen,
            allow_storage=False,
        )


def test_some_plans_begin_where_others_ended() -> None:
    """With plugins some engines come after others, and the plan says so."""
    plans = [Plan.of(seed, guests(Keeper)) for seed in SEEDS]
    assert {plan.is_restart for plan in plans} == {True, False}
    assert [("after engines" in str(plan)) for plan in plans] == [p.is_restart for p in plans]
    assert not any(Plan.of(seed).is_restart for seed in SEEDS)


def test_settings_are_drawn_that_a_plugin_takes() -> None:
    """One that needs a host tier has one in every plan, and what was drawn stays a plan."""
    plans = [Plan.of(seed, guests(Keeper)) for seed in SEEDS]
    assert all(plan.scheduler["host_pages"] for plan in plans)
    assert [Plan.of(seed, guests(Keeper)) for seed in SEEDS] == plans
    for plan in plans:
        simulate(plan)


def test_a_plugin_that_takes_nothing_is_told() -> None:
    """Its own words say why no plan can be drawn."""

    class Never(Plugin):
        name = "never"

        @hookimpl
        def check_config(self, config: Mapping[str, Any]) -> Sequence[str]:
            return ["it is never pleased"]

    with pytest.raises(ConfigError, match=r"none of \d+ settings was taken.*it is never pleased"):
        Plan.of(0, guests(Never))


def test_the_command_loads_plugins(capsys: pytest.CaptureFixture[str]) -> None:
    """`--plugin` may be repeated, options are flags, and a plan names its plugins."""
    flags = ["--plugin", "batch_log", "--plugin", "trace", "--trace-file", "/dev/null"]
    assert main(["simulate", "--seeds", "2", "--compare", "--json", *flags]) == 0
    assert json.loads(capsys.readouterr().out)["failures"] == {}
    assert main(["simulate", "--show", "1", *flags]) == 0
    said = capsys.readouterr().out
    assert "plugin batch_log {}" in said
    assert "plugin trace {'file': '/dev/null'}" in said


def test_a_file_has_a_plugins_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--config` names it, as for an engine, and a flag goes over it."""
    file = tmp_path / "engine.toml"
    file.write_text('[trace]\nfile = "/dev/null"\nmost_events = 700\n', encoding="utf-8")
    flags = ["--plugin", "trace", "--config", str(file), "--trace-most-events", "800"]
    assert main(["simulate", "--show", "1", *flags]) == 0
    assert "plugin trace {'file': '/dev/null', 'most_events': 800}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--plugin", "batch_lok"], "did you mean 'batch_log'"),
        (["--plugin", "batch_log", "--feature", "shout=true"], "claims {'shout': True}"),
        (["--batch-log-ever", "2"], "unknown flag"),
    ],
)
def test_what_no_plugin_knows_is_refused(
    flags: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plugin, a feature or a flag that is nobody's."""
    assert main(["simulate", "--seeds", "1", *flags]) == 2
    assert told in capsys.readouterr().err
