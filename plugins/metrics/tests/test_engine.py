# SPDX-License-Identifier: MIT
"""What an engine's series say of traffic whose numbers are known."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from tokenspeed_core.errors import CompositionError
from tokenspeed_core.testing import EngineFixture, EngineSetup, RowFault, Tiers
from tokenspeed_core.testing.batches import DecodeRow, batch_of
from tokenspeed_hookspecs import (
    AdmissionStage,
    CacheOperationKind,
    CommittedForward,
    ControlRequest,
    Engine,
    ForwardResult,
    Hold,
    Pass,
    Plugin,
    Request,
    Round,
    Verdict,
    hookimpl,
)
from tokenspeed_metrics.plugin import Metrics

Make = Callable[..., EngineFixture]
Read = Callable[[EngineFixture], dict[str, float]]
Families = Callable[[EngineFixture], list[dict[str, Any]]]


@pytest.mark.parametrize("depth", [0, 1])
def test_counters_are_exact(engine: Make, values: Read, depth: int) -> None:
    """Three prompts with one prefix: tokens, hits, ends and sizes, at either depth."""
    running = engine(EngineSetup(depth=depth))
    for name in "abc":
        running.add(name, 33, budget=5)
        running.run_to_end(name)
    running.to_idle()
    found = values(running)
    expected = {
        "num_requests_total": 3,
        "request_success_total": 3,
        "num_requests_ended_total{reason=length}": 3,
        "prompt_tokens_total": 99,
        "generation_tokens_total": 15,
        "prefix_cache_queries_total": 99,
        "prefix_cache_hits_total": 64,
        "iteration_tokens_total_sum": 33 + 1 + 1 + 3 * (4 + depth),  # a late row runs in vain
        "request_prompt_tokens_bucket{le=20.0}": 0,
        "request_prompt_tokens_bucket{le=50.0}": 3,
        "request_generation_tokens_sum": 15,
        "request_max_new_tokens_sum": 15,
        "request_queue_time_seconds_count": 3,
        "time_to_first_token_seconds_count": 3,
        "inter_token_latency_seconds_count": 12,
        "e2e_request_latency_seconds_count": 3,
    }
    assert {name: found[name] for name in expected} == expected


def test_gauges_are_read_from_the_state(engine: Make, values: Read) -> None:
    """While two run and one waits, then idle: no gauge is anything but what is there."""
    running = engine(EngineSetup(scheduler={"max_batch_size": 2}))
    for name in "abc":
        running.add(name, 32, budget=30)
    running.rounds(4)
    found, sizes = values(running), running.scheduler.sizes
    assert (found["num_requests_running"], found["num_requests_waiting"]) == (2, 1)
    assert found["kv_pages{state=active}"] == sizes.active_pages > 0
    assert found["kv_cache_usage_perc"] == sizes.active_pages / sizes.total_pages
    pages = [found[f"kv_pages{{state={state}}}"] for state in ("active", "cached", "empty")]
    assert sum(pages) == sizes.total_pages
    (group,) = running.rank.engine.data_plane.cache_groups
    total, available = (
        found[f"kv_group_pages{{group={group.name},state={state}}}"]
        for state in ("total", "available")
    )
    assert 0 <= available < total
    running.to_idle()
    assert values(running)["kv_cache_usage_perc"] == 0


def test_every_end_is_counted_once(engine: Make, values: Read) -> None:
    """A stop, a length, an abort, a row without numbers, a refusal: the sheet balances."""
    running = engine()
    for name in ("length", "stop", "gone", "nan"):
        running.add(name, 20, budget=10, stop_token_ids=(77,) if name == "stop" else ())
    running.plane.faults.at_token("stop", 3, fault=RowFault(token=77))
    running.plane.faults.at_token("nan", 2, fault=RowFault(is_nan=True))
    running.add("refused", [1, 10**9])
    running.rounds(3)
    running.abort("gone")
    running.to_idle()
    found = values(running)
    reasons = ("stop", "length", "abort", "error")
    assert [found[f"num_requests_ended_total{{reason={each}}}"] for each in reasons] == [1] * 4
    assert found["num_requests_total"] == 4
    assert found["request_success_total"] == 2
    assert found["num_requests_refused_total"] == 1
    assert found["num_nan_aborted_requests_total"] == 1


@pytest.mark.parametrize("seed", range(15))
def test_the_sheet_balances_over_random_ends(engine: Make, values: Read, seed: int) -> None:
    """Adds, the same id twice, aborts, retraction, pauses: ended is what was sent, and no gauge is
    below zero or left over."""
    rng = random.Random(seed)
    tiers = rng.choice([Tiers.DEVICE_ONLY, Tiers.FORCED_RETRACTION])
    running = engine(EngineSetup(tiers=tiers, scheduler={"num_pages": 40}))
    names = [f"r{number}" for number in range(rng.randint(5, 20))]
    for name in names:
        running.add(name, rng.randint(1, 60), budget=rng.randint(1, 20))
        if rng.random() < 0.2:
            running.put(ControlRequest("pause", {"mode": rng.choice(["abort", "wait", "keep"])}))
        if rng.random() < 0.3:
            running.put(ControlRequest("resume"))
        if rng.random() < 0.3:
            running.abort(rng.choice(names))
        running.rounds(rng.randint(0, 3))
        gauges = {k: v for k, v in values(running).items() if "num_requests_" in k}
        assert min(gauges.values()) >= 0
    running.put(ControlRequest("resume"))
    running.rounds(2)
    running.put(ControlRequest("resume"))
    running.to_idle()
    found = values(running)
    ended = [found[f"num_requests_ended_total{{reason={e}}}"] for e in ("stop", "length", "abort")]
    assert sum(ended) == found["num_requests_total"]
    assert found["num_requests_total"] + found["num_requests_refused_total"] == len(names)
    assert found["num_requests_running"] == found["num_requests_waiting"] == 0


def test_preemptions_are_the_snapshots_the_device_made(engine: Make, values: Read) -> None:
    """A forced retraction is one preemption, and each request's queue time is still one."""
    running = engine(EngineSetup(tiers=Tiers.FORCED_RETRACTION))
    for name in "abcd":
        running.add(name, 40, budget=20)
    running.run_to_end(*"abcd")
    found = values(running)
    assert found["num_preemptions_total"] == running.count(CacheOperationKind.SNAPSHOT) > 0
    assert found["request_queue_time_seconds_count"] == 4


def test_compilations_are_counted_once_there_are_any(engine: Make, values: Read) -> None:
    """What a data plane reports with a result; none, and there is no such series."""
    running = engine()
    running.add("a", 20, budget=6)
    running.rounds(3)
    assert not [name for name in values(running) if name.startswith("jit_")]
    for seconds in ([0.5, 0.25], [2.0]):
        running.plane.compiled += seconds
        running.rounds(2)
    found = values(running)
    assert found["jit_serving_compiles_total"] == 3
    assert found["jit_serving_compile_seconds_total"] == 2.75


def test_drafts_count_without_the_bonus_token(engine: Make, values: Read) -> None:
    """Rows verified four tokens wide: one took two drafts, one none, and one was late."""
    running = engine()
    batch = evolve(batch_of([], [DecodeRow(name, [1]) for name in "abc"]), input_lengths=[4, 4, 4])
    forward = CommittedForward(batch, ForwardResult([7] * 4, [3, 1, 0]), [], 0)
    (plugin,) = (p.instance for p in running.rank.plugins if isinstance(p.instance, Metrics))
    plugin.round_done(Round(1, forwards=(forward,)))
    found = values(running)
    names = ("drafts", "draft_tokens", "accepted_tokens")
    assert [found[f"spec_decode_num_{name}_total"] for name in names] == [2, 6, 2]


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Held(Plugin):
    """Holds requests until it is told."""

    name = "held"

    def __init__(self, options: object, engine: Engine) -> None:
        super().__init__(options, engine)
        self.lets_go = False

    @hookimpl
    def admission_stages(self) -> list[AdmissionStage]:
        return [self]

    def enter(self, request: Request) -> Verdict:
        return Hold()

    def poll(self, held: Any) -> list[int]:
        return [int(self.lets_go)] * len(held)

    def settle(self, held: Any, agreed: Any) -> list[Verdict]:
        return [Pass() if code else Hold() for code in agreed]

    def leave(self, request_id: str) -> None:
        pass


def test_time_in_a_stage_is_no_queue_time(engine: Make, values: Read) -> None:
    """It counts for the first token, and the stage says how many it holds."""
    clock = Clock()
    running = engine(EngineSetup(plugins=(Held,), clock=clock))
    running.add("a", 20, budget=2)
    running.rounds(2)
    assert values(running)["num_requests_held{stage=held}"] == 1
    clock.now += 7
    (stage,) = (p.instance for p in running.rank.plugins if isinstance(p.instance, Held))
    stage.lets_go = True
    running.run_to_end("a")
    found = values(running)
    assert found["request_queue_time_seconds_sum"] == 0
    assert found["time_to_first_token_seconds_sum"] == 7
    assert found["num_requests_held{stage=held}"] == 0


def test_a_pause_is_told_while_it_lasts(engine: Make, values: Read) -> None:
    """Which one holds, and whether memory is gone; frozen rounds leave the sizes as they were."""
    running = engine()
    modes = ("paused", "frozen", "released")
    for request, expected in (
        (ControlRequest("pause", {"mode": "keep"}), [0, 1, 0, 0]),
        (ControlRequest("resume"), [0, 0, 0, 0]),
        (ControlRequest("release_memory"), [0, 0, 1, 1]),
        (ControlRequest("resume_memory"), [0, 0, 0, 0]),
    ):
        running.put(request)
        running.rounds(4)
        found = values(running)
        told = [*(found[f"paused{{mode={mode}}}"] for mode in modes), found["sleeping"]]
        assert told == expected, request.name


def test_what_each_phase_and_plugin_took_is_told(engine: Make, values: Read) -> None:
    """Every phase of the round once a round, and every hook of a plugin."""
    running = engine()
    running.add("a", 20, budget=5)
    running.run_to_end("a")
    found = values(running)
    for phase in ("receive", "admit", "gate", "storage", "plan", "commit", "events"):
        count = found[f"round_seconds_count{{phase={phase}}}"]
        assert count == found["num_rounds_total"], phase  # a reply is in the round after those
    for hook in ("round_done", "request_finished"):
        assert found[f"plugin_seconds_total{{plugin=metrics,hook={hook}}}"] > 0


def test_labels_are_a_closed_set(engine: Make, families: Families) -> None:
    """No label is a request's: each name is on this list, and no value is an id."""
    running = engine(aliases=["vllm", "sglang"], labels={"cluster": "a"})
    running.add("secret-id", 20, budget=5)
    running.run_to_end("secret-id")
    known = {
        *("model_name", "engine", "cluster", "le", "reason", "finished_reason", "state", "mode"),
        *("phase", "plugin", "hook", "version", "data_plane", "dtype", "page_size", "groups"),
        *("num_pages", "group"),
    }
    for family in families(running):
        for _, labels, _ in family["samples"]:
            assert set(labels) <= known, family["name"]
            assert "secret-id" not in labels.values()
            assert labels["cluster"] == "a"


def test_aliases_say_what_their_sources_say(engine: Make, values: Read) -> None:
    """The same counts under the other engines' names, in the other engines' buckets."""
    running = engine(aliases=["vllm", "sglang"])
    for name in "abc":
        running.add(name, 33, budget=5)
        running.run_to_end(name)
    found = values(running)
    assert found["vllm:prompt_tokens_total"] == found["prompt_tokens_total"] == 99
    assert found["sglang:cached_tokens_total"] == found["prefix_cache_hits_total"]
    assert found["sglang:cache_hit_rate"] == 64 / 99
    assert found["vllm:request_success_total{finished_reason=length}"] == 3
    assert found["vllm:e2e_request_latency_seconds_count"] == 3
    assert found["vllm:request_params_max_tokens_sum"] == 15
    assert "vllm:time_to_first_token_seconds_bucket{le=0.001}" in found
    assert "time_to_first_token_seconds_bucket{le=0.001}" not in found


def test_two_engines_in_a_process_count_for_themselves(engine: Make, values: Read) -> None:
    """Neither knows the other's requests, of the same ids, at the same time, and refused or aborted
    in one of them alone."""
    first, second = engine(), engine()
    for name in "abcde":
        first.add(name, 20, budget=4)
        second.add(name, 20 if name < "d" else [10**9], budget=40)
        first.rounds(1)
        second.rounds(1)
    second.abort("a")
    first.to_idle()
    second.to_idle()
    names = ("request_success", "num_requests_refused", "generation_tokens")
    told = [[values(each)[f"{name}_total"] for name in names] for each in (first, second)]
    assert told[0] == [5, 0, 20]
    assert told[1][:2] == [2, 2]
    assert 80 < told[1][2] < 120
    assert values(second)["num_requests_ended_total{reason=abort}"] == 1


def test_switched_off_it_records_and_answers_nothing(engine: Make) -> None:
    """The engine then has silent instruments, as without the plugin."""
    running = engine(enabled=False)
    running.put(ControlRequest("metrics"))
    running.rounds(1)
    assert running.received.replies[-1].message == "metrics are switched off"
    assert running.rank.engine.watched_by is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"aliases": ["vlm"]}, "metrics.aliases: expected some of vllm, sglang, got 'vlm'"),
        ({"labels": {"le": "1"}}, "metrics.labels: expected lower-case words"),
        ({"exporters": {"push": {}}}, "metrics.exporters: nothing installed is named 'push'"),
        ({"histograms": {"request_queue_time_seconds": [2, 1]}}, "expected ascending buckets"),
    ],
)
def test_wrong_options_end_the_start(engine: Make, options: dict[str, Any], text: str) -> None:
    """Each says which option it is and what was expected."""
    with pytest.raises(CompositionError) as caught:
        engine(**options)
    assert text in str(caught.value)
