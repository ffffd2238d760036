# SPDX-License-Identifier: MIT
"""The scripted plane's tokens, counts, scores and faults."""

from __future__ import annotations

import numpy as np
import pytest

from tokenspeed_core.config import EngineConfig, SchedulerSection
from tokenspeed_core.errors import ConfigError
from tokenspeed_core.testing import RowFault, ScriptedDataPlane
from tokenspeed_core.testing.batches import DecodeRow, ExtendRow, batch_of, plan_of
from tokenspeed_core.testing.scripted_plane import ScriptedForward
from tokenspeed_hookspecs import (
    AdmittedRequest,
    Batch,
    CacheOperation,
    CacheOperationKind,
    Dispatch,
    ForwardResult,
    LogprobOptions,
    LogprobPlan,
    SamplingParams,
)

PROMPT = [1, 2, 3, 4, 5]


def _plane(*request_ids: str, scored: bool = False, **options: object) -> ScriptedDataPlane:
    config = EngineConfig(scheduler=SchedulerSection(page_size=16))
    plane = ScriptedDataPlane(config, options)
    wanted = LogprobOptions() if scored else None
    plane.admit(
        [AdmittedRequest(name, PROMPT, SamplingParams(), wanted, {}) for name in request_ids]
    )
    return plane


def _forward(
    plane: ScriptedDataPlane, batch: Batch, plan: LogprobPlan | None = None
) -> ForwardResult:
    pending = plane.execute(plan_of(batch), Dispatch(plan))
    assert pending is not None
    return plane.complete(pending)


def test_tokens_count_up_by_request() -> None:
    """A request's k-th token is 1000 + k, whatever its neighbours do."""
    plane = _plane("a", "b")
    first = _forward(plane, batch_of([ExtendRow("a", PROMPT, [1], slot=1)]))
    mixed = batch_of([ExtendRow("b", PROMPT, [2], slot=2)], [DecodeRow("a", [1], slot=1)])
    assert list(first.tokens) == [1000]
    assert list(_forward(plane, mixed).tokens) == [1000, 1001]


def test_a_mid_chunk_row_samples_nothing() -> None:
    """A chunk that does not complete its prompt reports token 0 and is not counted."""
    plane = _plane("a")
    chunk = _forward(plane, batch_of([ExtendRow("a", PROMPT, [1], length=3)]))
    last = _forward(plane, batch_of([ExtendRow("a", PROMPT, [1], prefix=3)]))
    assert (list(chunk.tokens), list(last.tokens)) == ([0], [1000])


def test_a_release_reports_what_was_given() -> None:
    """A released request is reported with the number of tokens it was given."""
    plane = _plane("a", "b")
    for _ in range(2):
        _forward(plane, batch_of([ExtendRow("a", PROMPT, [1])]))
    plane.release(["a", "b"])
    assert plane.released == [("a", 2), ("b", 0)]


@pytest.mark.parametrize("request_id", ["a", "never"])
def test_a_release_without_admission_fails(request_id: str) -> None:
    """A second release of an id, and one without admission, fail."""
    plane = _plane("a")
    plane.release(["a"])
    with pytest.raises(AssertionError, match="released twice, or never admitted"):
        plane.release([request_id])


def test_a_second_admission_fails() -> None:
    """An id cannot be admitted again before its release."""
    plane = _plane("a")
    with pytest.raises(AssertionError, match="admitted twice"):
        plane.admit([AdmittedRequest("a", PROMPT, SamplingParams(), None, {})])


def test_a_row_of_a_released_request_fails() -> None:
    """A forward may not name a request that was released."""
    plane = _plane("a")
    _forward(plane, batch_of([ExtendRow("a", PROMPT, [1])]))
    plane.release(["a"])
    with pytest.raises(AssertionError, match="belongs to no admitted request"):
        _forward(plane, batch_of([], [DecodeRow("a", [1])]))


def test_a_restored_request_counts_on_in_its_new_slot() -> None:
    """A restore moves the count to the new slot, also when another request took the old one."""
    plane = _plane("a", "b")
    _forward(plane, batch_of([ExtendRow("a", PROMPT, [1], slot=1)]))
    _forward(plane, batch_of([ExtendRow("b", PROMPT, [2], slot=1)]))
    restore = CacheOperation(7, CacheOperationKind.RESTORE, request_id="a", slot=3)
    plane.execute(plan_of(None, [restore]), Dispatch())
    rows = [DecodeRow("a", [3], slot=3, token=1000), DecodeRow("b", [2], slot=1)]
    assert list(_forward(plane, batch_of([], rows)).tokens) == [1001, 1001]


def test_a_first_token_sampled_elsewhere_counts() -> None:
    """A decode row that brings its first token from the host continues at the second."""
    plane = _plane("a")
    result = _forward(plane, batch_of([], [DecodeRow("a", [1], token=1000)]))
    assert list(result.tokens) == [1001]


def test_operations_are_acknowledged_by_the_next_poll() -> None:
    """An operation that ran is acknowledged once, by the poll after it; plugins' kinds are not."""
    plane = _plane()
    kinds = [CacheOperationKind.WRITE_BACK, CacheOperationKind.OTHER]
    plane.execute(
        plan_of(None, [CacheOperation(at, kind) for at, kind in enumerate(kinds)]), Dispatch()
    )
    polled = [plane.poll_cache_operations(), plane.poll_cache_operations()]
    assert [[(done.op_id, done.kind) for done in part] for part in polled] == [[(0, kinds[0])], []]
    assert plane.operations == dict.fromkeys(kinds, 1)


def test_scores_tell_their_position() -> None:
    """Token t scores -t / 1000, the prompt token after position p scores -(p + 1) / 10."""
    plane = _plane("a", scored=True)
    plan = LogprobPlan([1], [3], [1], top_k=2, sampled_top_k=2)
    result = _forward(plane, batch_of([ExtendRow("a", PROMPT, [1])]), plan)
    assert result.logprobs == [-1.0]
    assert result.prompt_logprobs == pytest.approx([-0.2, -0.3, -0.4])
    assert result.prompt_alternatives is not None
    assert result.prompt_alternatives.token_ids.tolist() == [[3, 901], [4, 901], [5, 901]]
    assert result.alternatives is not None
    assert result.alternatives.token_ids.tolist() == [[1000, 901]]
    assert result.alternatives.logprobs.tolist() == [[-1.0, -2.0]]


def test_nobody_scored_reports_no_scores() -> None:
    """Without a request that wants logprobs a forward reports none."""
    assert _forward(_plane("a"), batch_of([ExtendRow("a", PROMPT, [1])])).logprobs is None


def test_faults_hit_their_row_only() -> None:
    """A fault changes the token, the NaN flag and the logprob of its request's k-th token."""
    plane = _plane("a", "b", scored=True)
    plane.faults.at_token("b", 0, fault=RowFault(token=7, is_nan=True, logprob=-np.inf))
    rows = [ExtendRow("a", PROMPT, [1], slot=1), ExtendRow("b", PROMPT, [2], slot=2)]
    result = _forward(plane, batch_of(rows))
    assert list(result.tokens) == [1000, 7]
    assert (result.nan_rows, result.logprobs) == ([1], [-1.0, -np.inf])


def test_a_fault_can_hit_a_chunk() -> None:
    """A chunk fault is found by the prompt position its chunk begins at."""
    plane = _plane("a")
    plane.faults.at_chunk("a", 2, fault=RowFault(is_nan=True))
    chunks = [ExtendRow("a", PROMPT, [1], prefix=prefix, length=2) for prefix in (0, 2)]
    found = [list(_forward(plane, batch_of([chunk])).nan_rows) for chunk in chunks]
    assert found == [[], [0]]


def test_forwards_take_their_time_one_after_another() -> None:
    """Each forward is due one forward time after the one before it, not after its dispatch."""
    plane = _plane("a", forward_ms=5000.0)
    batch = batch_of([ExtendRow("a", PROMPT, [1])])
    pending = [plane.execute(plan_of(batch), Dispatch()) for _ in range(3)]
    due = [forward.due_at for forward in pending if isinstance(forward, ScriptedForward)]
    assert np.diff(due) == pytest.approx([5.0, 5.0])


def test_an_unknown_option_is_refused() -> None:
    """A misspelled option of the plane is a configuration error that names the nearest one."""
    with pytest.raises(ConfigError, match="forward_ms"):
        _plane(forward_mss=1)


class _Recorder:
    """An extension that keeps what it was told."""

    name = "recorder"

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_admit(self, requests: list[AdmittedRequest]) -> None:
        self.seen += [f"admit {each.request_id}" for each in requests]

    def prepare_inputs(self, batch: Batch, value: object) -> None:
        self.seen.append(f"prepare {value}")

    def sampled(self, batch: Batch, tokens: np.ndarray) -> None:
        self.seen.append(f"sampled {tokens.tolist()}")

    def on_release(self, request_ids: list[str]) -> None:
        self.seen += [f"release {each}" for each in request_ids]


def test_extensions_run_in_order_with_the_forward() -> None:
    """An extension hears of admission, inputs, samples and release, in this order."""
    plane, recorder = _plane(), _Recorder()
    plane.start([recorder])
    plane.admit([AdmittedRequest("a", PROMPT, SamplingParams(), None, {})])
    dispatch = Dispatch(inputs={"recorder": 5, "another": 6})
    plane.execute(plan_of(batch_of([ExtendRow("a", PROMPT, [1])])), dispatch)
    plane.release(["a"])
    assert recorder.seen == ["admit a", "prepare 5", "sampled [1000]", "release a"]
