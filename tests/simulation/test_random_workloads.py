# SPDX-License-Identifier: MIT
"""Seeded random traffic over every kind of small engine, with page contents checked.

After each round the kit's invariants hold; at the end everything is back at its start. A failure
names its seed, which is the whole plan: `Workload.of(seed)` makes it again.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from attrs import evolve, frozen

from tokenspeed_core.testing import (
    EngineFixture,
    EngineSetup,
    ManualFrontend,
    RowFault,
    Tiers,
    request,
    telling_tokens,
)
from tokenspeed_hookspecs import (
    AddRequest,
    AdmissionStage,
    ControlRequest,
    Engine,
    Hold,
    LogprobOptions,
    Pass,
    Plugin,
    Request,
    Round,
    Verdict,
    hookimpl,
)

BATCHES, SEEDS_A_BATCH = 6, 20
END_TOKEN = 77
OPERATIONS = (
    ControlRequest("pause", {"mode": "abort"}),
    ControlRequest("pause", {"mode": "wait"}),
    *[ControlRequest("pause", {"mode": "keep"})] * 2,
    *[ControlRequest("resume")] * 4,
    ControlRequest("flush_cache"),
    ControlRequest("release_memory"),
    ControlRequest("release_memory", {"tags": ["weights"]}),
    *[ControlRequest("resume_memory")] * 3,
    ControlRequest("update_weights_from_disk", {"model_path": "m"}),
    ControlRequest("update_weights_from_disk", {"model_path": "m", "flush_cache": False}),
)


@frozen
class Arrival:
    """A request, when it comes, and when it is given up, in rounds (None: never).

    `ends_at` is the index of the token that is its stop token, `nan_at` of the one that is NaN.
    `polls` is how long a stage holds it, and `told` whether the engine aborts it, which is told to
    the client, or the client does.
    """

    message: AddRequest
    round: int
    abort_round: int | None
    told: bool
    polls: int
    ends_at: int | None
    nan_at: int | None

    def expected(self, max_request_tokens: int) -> list[int]:
        """The tokens it must get if it is not aborted; the budget is cut to what ever fits."""
        room = max_request_tokens - len(self.message.prompt_ids)
        budget = min(self.message.sampling.max_new_tokens or 0, room)
        ends = budget if self.ends_at is None else self.ends_at
        nan = budget if self.nan_at is None else self.nan_at
        if nan < budget and nan <= ends:
            return telling_tokens(nan)
        if ends < budget:
            return [*telling_tokens(ends), END_TOKEN]
        return telling_tokens(budget)


@frozen
class Workload:
    """An engine, its traffic, and what operators ask of it in which round; all from a seed."""

    seed: int
    setup: EngineSetup
    arrivals: list[Arrival]
    operations: list[tuple[int, ControlRequest]]

    @classmethod
    def of(cls, seed: int) -> Workload:
        """The workload of a seed."""
        rng = random.Random(seed)
        return cls(seed, _setup(rng), _arrivals(rng), _operations(rng))


class Waiting(Plugin):
    """Holds each request for as many polls as its feature says, and ends what `due` names."""

    name = "waiting"
    features = ("polls",)

    def __init__(self, options: object, engine: Engine) -> None:
        super().__init__(options, engine)
        self._left: dict[str, int] = {}
        self.due: list[str] = []

    @hookimpl
    def planned(self, round: Round) -> None:
        for request_id in self.due:
            self.engine.requests.abort(request_id, "ended by the engine")
        self.due = []

    @hookimpl
    def admission_stages(self) -> Sequence[AdmissionStage]:
        return [self]

    def enter(self, request: Request) -> Verdict:
        polls = request.features.get("polls", 0)
        assert isinstance(polls, int)
        self._left[request.request_id] = polls
        return Hold() if polls else Pass()

    def poll(self, held: Sequence[Request]) -> Sequence[int]:
        for each in held:
            self._left[each.request_id] -= 1
        return [self._left[each.request_id] <= 0 for each in held]

    def settle(self, held: Sequence[Request], agreed: Sequence[int]) -> Sequence[Verdict]:
        return [Pass() if code else Hold() for code in agreed]

    def leave(self, request_id: str) -> None:
        del self._left[request_id]


def _setup(rng: random.Random) -> EngineSetup:
    tiers = rng.choice(list(Tiers))
    scheduler: dict[str, object] = {
        "num_pages": rng.choice([16, 24, 40, 513]),
        "max_batch_size": rng.choice([1, 3, 8]),
        "max_scheduled_tokens": rng.choice([8, 40, 256]),
        "prefix_cache": rng.random() < 0.8,
        "mixed_batches": rng.random() < 0.7,
    }
    if tiers in {Tiers.FORCED_RETRACTION, Tiers.HOST_AND_FORCED_RETRACTION}:
        scheduler["force_retraction_every"] = rng.choice(
            [3, 4, 7]
        )  # every second plan would never let a row run
    if tiers in {Tiers.HOST, Tiers.HOST_AND_FORCED_RETRACTION}:
        scheduler["host_pages"] = rng.choice([20, 100])
    window = rng.choice([None, None, 24])
    return EngineSetup(
        depth=rng.choice([0, 1, 2]),
        tiers=tiers,
        scheduler=scheduler,
        plane={"sliding_window": window, "recorded_batches": 0},
        stream_interval=rng.choice([1, 1, 4]),
        plugins=(Waiting,),
    )


def _arrivals(rng: random.Random) -> list[Arrival]:
    roots = [[rng.randrange(50) for _ in range(90)] for _ in range(2)]
    arrivals, at = [], 0
    for number in range(rng.randint(4, 14)):
        at += rng.randint(0, 4)
        prompt = [*rng.choice(roots)[: rng.randint(0, 90)], *range(100, 100 + rng.randint(1, 30))]
        wanted = None
        if rng.random() < 0.2:
            wanted = LogprobOptions(rng.randrange(len(prompt)), rng.randrange(3))
        message = request(
            f"r{number}",
            prompt,
            budget=rng.randint(1, 40),
            stop_token_ids=(END_TOKEN,) if rng.random() < 0.3 else (),
            logprobs=wanted,
        )
        polls = rng.choice([0, 0, 0, 1, 6])
        arrivals.append(
            Arrival(
                evolve(message, stream=rng.random() < 0.9, features={"polls": polls}),
                at,
                at + rng.randint(0, 25) if rng.random() < 0.3 else None,
                rng.random() < 0.5,
                polls,
                rng.randrange(20) if message.sampling.stop_token_ids else None,
                rng.randrange(10) if rng.random() < 0.1 else None,
            )
        )
    return arrivals


def _operations(rng: random.Random) -> list[tuple[int, ControlRequest]]:
    """None for half the seeds; in the others any in any order, so some are refused."""
    if rng.random() < 0.5:
        return []
    rounds = sorted(rng.randint(0, 60) for _ in range(rng.randint(1, 8)))
    return [(number, rng.choice(OPERATIONS)) for number in rounds]


def run(workload: Workload, *, depth: int | None = None) -> EngineFixture:
    """Run a workload to idle, which checks the engine; then each stream against its plan."""
    setup = workload.setup if depth is None else evolve(workload.setup, depth=depth)
    engine = EngineFixture(evolve(setup, frontend=ManualFrontend()))
    for arrival in workload.arrivals:
        name = arrival.message.request_id
        if arrival.ends_at is not None:
            engine.plane.faults.at_token(name, arrival.ends_at, fault=RowFault(token=END_TOKEN))
        if arrival.nan_at is not None:
            engine.plane.faults.at_token(name, arrival.nan_at, fault=RowFault(is_nan=True))
    rounds = [max(a.round, a.abort_round or 0) for a in workload.arrivals]
    for number in range(max([*rounds, *(at for at, _ in workload.operations)]) + 1):
        _send(engine, workload, number=number)
        engine.round()
    _wake(engine)
    engine.to_idle()
    asked = sorted(request.name for _, request in workload.operations)
    assert sorted(reply.name for reply in engine.received.replies) == asked
    for arrival in workload.arrivals:
        _check(engine, arrival)
    return engine


def _send(engine: EngineFixture, workload: Workload, *, number: int) -> None:
    """Do what is due before a round: operations, aborts, arrivals."""
    plugin = engine.rank.plugins[0].instance
    assert isinstance(plugin, Waiting)
    engine.put(*(request for at, request in workload.operations if at == number))
    ended = [a for a in workload.arrivals if a.abort_round == number]
    plugin.due = [a.message.request_id for a in ended if a.told and a.round < number]
    engine.put(*(a.message for a in workload.arrivals if a.round == number))
    names = [a.message.request_id for a in ended]
    engine.abort(*(name for name in names if name not in plugin.due))


def _wake(engine: EngineFixture) -> None:
    """Let what drains be answered, then run again whatever the state."""
    controls = engine.loop.controls
    engine.run_until(lambda: controls.drain is None and not engine.loop.gate.is_busy)
    if controls.released:
        regions = controls.to_resume()
        assert isinstance(regions, tuple)
        engine.plane.resume_memory(regions)
        controls.finish_resume(regions)
    assert controls.resume().success


def _check(engine: EngineFixture, arrival: Arrival) -> None:
    name = arrival.message.request_id
    stream = engine.received[name]
    ends = [given for each, given in engine.plane.released if each == name]
    is_refused = stream.finish is not None and stream.finish.status_code == 400
    assert len(ends) == (0 if is_refused else 1), f"{name} was released {ends}"
    expected = arrival.expected(engine.scheduler.max_request_tokens)
    by_pause = stream.finish is not None and stream.finish.message == "Aborted by pause"
    if arrival.abort_round is None and not is_refused and not by_pause:
        assert stream.tokens == expected, name
        assert stream.finish is not None, f"{name} has no end"
    else:
        assert stream.tokens == expected[: len(stream.tokens)], name
    if stream.tokens and arrival.message.logprobs is not None:
        assert len(stream.logprobs) == len(stream.tokens), name


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_traffic_ends_once_and_leaves_nothing(batch: int) -> None:
    """Every request has one end and its own tokens only, and nothing is held afterwards."""
    for seed in range(batch * SEEDS_A_BATCH, (batch + 1) * SEEDS_A_BATCH):
        try:
            run(Workload.of(seed))
        except BaseException as error:
            error.add_note(f"seed {seed}: {Workload.of(seed).setup}")
            raise


@pytest.mark.parametrize("batch", range(4))
def test_tokens_do_not_depend_on_the_depth(batch: int) -> None:
    """Without aborts, which a depth answers at another token, all depths deliver the same."""
    for seed in range(10_000 + 10 * batch, 10_000 + 10 * (batch + 1)):
        workload = evolve(Workload.of(seed), operations=[])
        names = [a.message.request_id for a in workload.arrivals if a.abort_round is None]
        engines = [run(workload, depth=depth) for depth in (0, 1, 2)]
        found = [[(e.received[n].tokens, e.received[n].kind) for n in names] for e in engines]
        assert found[0] == found[1] == found[2], f"seed {seed}: {workload.setup}"
