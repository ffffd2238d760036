# SPDX-License-Identifier: MIT
"""Plans of one to four ranks with faults: what must hold holds, and a failing plan gets small."""

from __future__ import annotations

import json

import pytest
from attrs import evolve

from tokenspeed_core.cli.main import main
from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.testing.simulation.comparing import compare
from tokenspeed_core.testing.simulation.faults import HARMS, MORE_HARMS, Fault, Harm
from tokenspeed_core.testing.simulation.jobs import Work
from tokenspeed_core.testing.simulation.plan import Plan
from tokenspeed_core.testing.simulation.run import SimulationError, simulate, sweep
from tokenspeed_core.testing.simulation.shrinking import shrink
from tokenspeed_core.testing.simulation.variations import plain
from tokenspeed_hookspecs import ControlRequest

BATCHES, SEEDS_A_BATCH = 2, 10  # .ci/run has a thousand


@pytest.mark.parametrize("batch", range(BATCHES))
def test_what_must_hold_holds(batch: int) -> None:
    """Whatever comes and breaks, requests end once, mirrors agree, and nothing is left over."""
    for seed in range(batch * SEEDS_A_BATCH, (batch + 1) * SEEDS_A_BATCH):
        simulate(Plan.of(seed))


@pytest.mark.parametrize("seed", [4, 8, 26])
def test_a_seed_is_one_run(seed: int) -> None:
    """The same plan gives the same rounds, tokens and faults again."""
    assert simulate(Plan.of(seed)) == simulate(Plan.of(seed))


@pytest.mark.parametrize("seed", [0, 9])
def test_answers_do_not_depend_on_how_it_runs(seed: int) -> None:
    """Depth, ranks, pool and recorded events change no request's answer."""
    assert compare(Plan.of(seed)) == []


@pytest.mark.parametrize("kind", ["complete raises", "stage raises", "observer raises"])
def test_any_call_may_fail(kind: str) -> None:
    """Each of the first calls of a kind fails in a run of its own, and each is borne."""
    assert sweep(plain(Plan.of(4)), kind, most=12) == 12


@pytest.mark.parametrize("kind", sorted(HARMS))
def test_each_fault_does_what_it_says(kind: str) -> None:
    """A fault on the first of two ranks fires, and what comes of it is what was said."""
    plan = next(
        evolve(plan, faults=[Fault(kind, 0, 2)])
        for plan in (plain(Plan.of(seed)) for seed in range(1000))
        if plan.topology.tp == 2 and plan.scheduler.get("snapshot_pages") and plan.is_watched
        if any(arrival.polls for arrival in plan.arrivals)
    )
    outcome = simulate(plan)
    assert [fault.kind for fault in outcome.faults] == [kind]
    assert bool(outcome.failure) or HARMS[kind] is not Harm.END


OPERATIONS = (
    (4, ControlRequest("flush_cache")),
    (8, ControlRequest("update_weights_from_disk", {"model_path": "m", "flush_cache": False})),
    (12, ControlRequest("release_memory")),
    (30, ControlRequest("resume_memory")),
    (34, ControlRequest("flush_cache")),
)


@pytest.mark.parametrize("kind", sorted(MORE_HARMS))
def test_each_rarer_fault_does_what_it_says(kind: str) -> None:
    """Every hook and every call of a port can fail on a rank of two, and the other hears of it."""
    topology = Topology(dp=2) if kind == "idle_forward raises" else Topology(tp=2)
    plan = plain(Plan.of(4))
    first, *rest = [evolve(each, replica=0) for each in plan.arrivals]
    arrivals = [evolve(first, abort_round=first.round + 3), *rest]
    rank = 1 if kind == "idle_forward raises" else 0
    plan = evolve(
        plan,
        topology=topology,
        scheduler={**plan.scheduler, "num_pages": 24, "host_pages": 100},
        arrivals=arrivals,
        operations=OPERATIONS,
        faults=[Fault(kind, rank, 1)],
    )
    outcome = simulate(plan)
    assert [fault.kind for fault in outcome.faults] == [kind]
    assert bool(outcome.failure) == (MORE_HARMS[kind] is Harm.END)


def test_a_failing_plan_is_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a plan's requests only those are left that the failure needs."""
    monkeypatch.setitem(HARMS, "participant raises", Harm.NONE)  # a judge that is wrong
    plan = evolve(Plan.of(2), faults=[Fault("participant raises", 0, 3)])
    with pytest.raises(SimulationError, match="ended without a fault that ends"):
        simulate(plan)
    small = shrink(plan, Work().fails)
    assert len(small.arrivals) == 1
    assert small.operations == []


def test_a_plan_can_be_read() -> None:
    """The printed plan names ranks, settings, requests and faults."""
    text = str(evolve(Plan.of(8), faults=[Fault("poll raises", 0, 3)]))
    assert "seed 8: Topology(" in text
    assert "r0: prompt" in text
    assert "fault: poll raises on rank 0, call 3 (end)" in text


def test_the_command_counts(capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` has the totals and no failure."""
    assert main(["simulate", "--seeds", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["seeds"], found["failures"]) == (3, {})
    assert found["tokens"] > 0


def test_several_processes_run_the_same_seeds(capsys: pytest.CaptureFixture[str]) -> None:
    """`--jobs` changes how long it takes and nothing else."""
    found = []
    for jobs in ("1", "2"):
        assert main(["simulate", "--seeds", "6", "--jobs", jobs, "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out) | {"seconds": 0})
    assert found[0] == found[1]


def test_the_command_shows_a_plan(capsys: pytest.CaptureFixture[str]) -> None:
    """`--show SEED` prints it and runs nothing."""
    assert main(["simulate", "--show", "7"]) == 0
    assert capsys.readouterr().out.startswith("seed 7: ")
