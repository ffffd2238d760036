# SPDX-License-Identifier: MIT
"""What a seed stands for: ranks, settings, requests, operations, faults; printed when it fails."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve, field, frozen

from tokenspeed_core.composition.resolve import Resolved, resolve
from tokenspeed_core.composition.selection import PluginChoice
from tokenspeed_core.errors import ConfigError
from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.testing.engine import EngineSetup
from tokenspeed_core.testing.messages import request, telling_tokens
from tokenspeed_core.testing.simulation.faults import Fault, draw_faults, draw_more
from tokenspeed_core.testing.simulation.guests import Guests, refusal
from tokenspeed_core.testing.simulation.plugin import Simulated
from tokenspeed_hookspecs import AddRequest, ControlRequest, LogprobOptions

END_TOKEN = 77
TOPOLOGIES = (
    *[Topology()] * 6,
    *[Topology(tp=2)] * 3,
    Topology(pp=2),
    Topology(dp=2),
    Topology(tp=2, pp=2),
    Topology(tp=2, dp=2),
)
OPERATIONS = (
    ControlRequest("pause", {"mode": "abort"}),
    ControlRequest("pause", {"mode": "wait"}),
    *[ControlRequest("pause", {"mode": "keep"})] * 2,
    *[ControlRequest("resume")] * 4,
    ControlRequest("flush_cache"),
    ControlRequest("release_memory"),
    *[ControlRequest("resume_memory")] * 2,
    ControlRequest("update_weights_from_disk", {"model_path": "m"}),
)
HOST = {"host_pages": (20, 100)}
# Not every fourth round: with chunks of 8 tokens the scheduler's victims can then be two prompts in
# turn, neither of which ever gets a chunk further.
RETRACTION = {"snapshot_pages": (65,), "max_retracted": (8,), "force_retraction_every": (3, 5, 7)}
TIERS: Sequence[Mapping[str, tuple[int, ...]]] = ({}, {}, HOST, RETRACTION, {**HOST, **RETRACTION})
NO_GUESTS = Guests()
MOST_DRAWS = 60
RESTARTS = 0.4


@frozen
class Arrival:
    """A request, its replica, when it comes, and when it is given up, in rounds (None: never).

    A stage holds it for `polls`. Its token number `ends_at` is its stop token, number `nan_at` is
    NaN, and with `nan_chunk` every chunk of its prompt but the last is. `told` is whether the
    engine ends it, which its client is told, or the client does.
    """

    message: AddRequest
    replica: int
    round: int
    abort_round: int | None = None
    told: bool = False
    polls: int = 0
    ends_at: int | None = None
    nan_at: int | None = None
    nan_chunk: bool = False

    @property
    def feature(self) -> Mapping[str, object]:
        """What of it means something to a guest."""
        return {key: value for key, value in self.message.features.items() if key != "polls"}

    def featuring(self, feature: Mapping[str, object]) -> Arrival:
        """The request with this feature instead of its own."""
        features = {"polls": self.polls, **feature}
        return evolve(self, message=evolve(self.message, features=features))

    def expected(self, max_request_tokens: int) -> list[int]:
        """The tokens it must get if nothing ends it early."""
        room = max_request_tokens - len(self.message.prompt_ids)
        budget = min(self.message.sampling.max_new_tokens or 0, room)
        ends = budget if self.ends_at is None else self.ends_at
        nan = budget if self.nan_at is None else self.nan_at
        if nan < budget and nan <= ends:
            return telling_tokens(nan)
        if ends < budget:
            return [*telling_tokens(ends), END_TOKEN]
        return telling_tokens(budget)


SHOWN = (
    "replica",
    "round",
    "abort_round",
    "told",
    "polls",
    "ends_at",
    "nan_at",
    "nan_chunk",
    "feature",
)


@frozen
class Plan:
    """Everything about one run; two runs of equal plans are equal."""

    seed: int
    topology: Topology
    depth: int
    scheduler: Mapping[str, Any]
    sliding_window: int | None
    stream_interval: int
    arrivals: Sequence[Arrival]
    operations: Sequence[tuple[int, ControlRequest]] = ()
    faults: Sequence[Fault] = ()
    is_watched: bool = field(default=True)  # a plugin records and compares cache events
    guests: Guests = NO_GUESTS
    is_restart: bool = False  # other engines had the same requests, and left what guests keep

    @classmethod
    def of(cls, seed: int, guests: Guests = NO_GUESTS) -> Plan:
        """The plan of a seed. CompositionError: guests cannot be, or take no settings drawn."""
        rng = random.Random(seed)
        topology = rng.choice(TOPOLOGIES)
        plan = cls(
            seed=seed,
            topology=topology,
            **_settings(rng, topology),
            stream_interval=rng.choice([1, 1, 4]),
            arrivals=_with_more(_arrivals(rng, topology.dp), random.Random(f"{seed} more")),
            operations=_operations(rng),
            faults=draw_faults(rng, topology.world_size) if rng.random() < 0.5 else (),
        )
        if not plan.faults:
            plan = evolve(
                plan, faults=draw_more(random.Random(f"{seed} rare"), topology.world_size)
            )
        return _welcoming(plan, guests) if guests else plan

    @property
    def setup(self) -> EngineSetup:
        """What the engines of all ranks have in common."""
        setup = EngineSetup(
            depth=self.depth,
            scheduler=self.scheduler,
            plane={"sliding_window": self.sliding_window, "recorded_batches": 1},
            stream_interval=self.stream_interval,
            plugins=(PluginChoice(Simulated, {"events": self.is_watched}),),
        )
        return self.guests.welcomed(setup)

    @property
    def num_rounds(self) -> int:
        """Rounds until nothing more comes."""
        ends = [max(each.round, each.abort_round or 0) for each in self.arrivals]
        return max([0, *ends, *(at for at, _ in self.operations)]) + 1

    @property
    def is_plain(self) -> bool:
        """Whether each request runs to its end: nothing is aborted, paused or broken."""
        is_left = any(each.abort_round is not None for each in self.arrivals)
        return not (is_left or self.operations or self.faults)

    def __str__(self) -> str:
        lines = [
            f"seed {self.seed}: {self.topology}, depth {self.depth}, window "
            f"{self.sliding_window}, stream interval {self.stream_interval}",
            f"  scheduler {dict(self.scheduler)}",
            *(f"  plugin {each}" for each in self.guests.shown),
            *(["  after engines that had these requests"] if self.is_restart else []),
        ]
        for each in self.arrivals:
            length, sampling = len(each.message.prompt_ids), each.message.sampling
            facts = {name: getattr(each, name) for name in SHOWN if getattr(each, name)}
            lines.append(
                f"  {each.message.request_id}: prompt {length}, budget {sampling.max_new_tokens}, "
                f"{facts}"
            )
        lines += [
            f"  round {at}: {each.name} {dict(each.arguments)}" for at, each in self.operations
        ]
        return "\n".join([*lines, *(f"  fault: {fault}" for fault in self.faults)])


def _settings(rng: random.Random, topology: Topology) -> dict[str, Any]:
    window = rng.choice([None, None, 24])
    tiers = {key: rng.choice(values) for key, values in rng.choice(TIERS).items()}
    return {
        "sliding_window": window,
        "depth": rng.choice([0, 1, 2]) if topology.pp == 1 else rng.choice([1, 2]),
        "scheduler": {
            "num_pages": rng.choice([16, 24, 40, 513]),
            "max_batch_size": rng.choice([1, 3, 8]),
            "max_scheduled_tokens": rng.choice([8, 40, 256]),
            "prefix_cache": rng.random() < 0.8,
            "mixed_batches": rng.random() < 0.7,
            **tiers,
        },
        # The scheduler refuses these three together.
        "is_watched": window is None or "snapshot_pages" not in tiers,
    }


def _welcoming(plan: Plan, guests: Guests) -> Plan:
    """The plan with guests, some requests for them, and settings that they take."""
    rng = random.Random(f"{plan.seed} guests")
    arrivals = [each.featuring(guests.feature_of(rng)) for each in plan.arrivals]
    is_restart = rng.random() < RESTARTS
    plan = evolve(plan, arrivals=arrivals, guests=guests, is_restart=is_restart)
    resolved: dict[bool, Resolved] = {}
    for _ in range(MOST_DRAWS):
        setup, is_watched = plan.setup, plan.is_watched
        if is_watched not in resolved:
            resolved[is_watched] = resolve(setup.config(), setup.plugins)
        reason = refusal(evolve(setup, resolved=resolved[is_watched]))
        if not reason:
            return plan
        plan = evolve(plan, **_settings(rng, plan.topology))
    raise ConfigError([f"none of {MOST_DRAWS} settings was taken; the last: {reason}"])


def _arrivals(rng: random.Random, num_replicas: int) -> list[Arrival]:
    roots = [[rng.randrange(50) for _ in range(90)] for _ in range(2)]
    arrivals, at = [], 0
    for number in range(rng.randint(3, 10)):
        at += rng.randint(0, 4)
        prompt = [*rng.choice(roots)[: rng.randint(0, 90)], *range(100, 100 + rng.randint(1, 30))]
        has_end = rng.random() < 0.3
        wanted = LogprobOptions(rng.randrange(len(prompt))) if rng.random() < 0.2 else None
        message = request(
            f"r{number}",
            prompt,
            budget=rng.randint(1, 30),
            stop_token_ids=(END_TOKEN,) if has_end else (),
            logprobs=wanted,
        )
        polls = rng.choice([0, 0, 0, 1, 6])
        arrivals.append(
            Arrival(
                AddRequest(
                    message.request_id,
                    message.prompt_ids,
                    message.sampling,
                    rng.random() < 0.9,
                    message.logprobs,
                    {"polls": polls},
                ),
                replica=rng.randrange(num_replicas),
                round=at,
                abort_round=at + rng.randint(0, 25) if rng.random() < 0.3 else None,
                told=rng.random() < 0.5,
                polls=polls,
                ends_at=rng.randrange(20) if has_end else None,
                nan_at=rng.randrange(10) if rng.random() < 0.1 else None,
            )
        )
    return arrivals


def _with_more(arrivals: Sequence[Arrival], rng: random.Random) -> list[Arrival]:
    """Some with an interval of their own, some with NaN in a chunk; from draws of their own, so
    that what else a seed stands for stays as it was."""
    found = []
    for each in arrivals:
        sampling = evolve(each.message.sampling, stream_interval=rng.choice([None, None, 1, 3]))
        message = evolve(each.message, sampling=sampling)
        found.append(evolve(each, message=message, nan_chunk=rng.random() < 0.06))
    return found


def _operations(rng: random.Random) -> list[tuple[int, ControlRequest]]:
    if rng.random() < 0.5:
        return []
    rounds = sorted(rng.randint(0, 50) for _ in range(rng.randint(1, 6)))
    return [(number, rng.choice(OPERATIONS)) for number in rounds]
