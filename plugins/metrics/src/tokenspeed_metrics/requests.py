# SPDX-License-Identifier: MIT
"""What a request has to tell when it ends, which is once: how long it took, and how it ended.

Times run from the request's arrival at the engine to the commit of its tokens; what a front end
and the network add is not in them.
"""

from __future__ import annotations

from tokenspeed_hookspecs import Engine, FinishedRequest, FinishKind, FinishReason
from tokenspeed_metrics import buckets
from tokenspeed_metrics.catalogue import Catalogue
from tokenspeed_metrics.series import Histogram

ENDS = ("stop", "length", "abort", "error")
# The error types of an abort from outside, and of one for logits that are no numbers.
FROM_OUTSIDE, NO_NUMBERS = 522, 523


class RequestSeries:
    """Made at the start; nothing of a request is kept."""

    def __init__(self, catalogue: Catalogue, engine: Engine) -> None:
        counter, times = catalogue.counter, catalogue.histogram
        self._requests = engine.requests
        self._num_refused = 0
        self._ended = counter("num_requests", "Requests that were admitted and ended.")
        self._ended_by = {
            reason: counter(
                "num_requests_ended",
                "Ended requests by reason; error is an abort of the engine's own.",
                labels={"reason": reason},
            )
            for reason in ENDS
        }
        self._success = counter("request_success", "Ended requests that were not aborted.")
        self._refused = counter("num_requests_refused", "Requests refused, so never admitted.")
        self._nan = counter("num_nan_aborted_requests", "Aborts for logits that are no numbers.")
        self._prompt = counter("prompt_tokens", "Prompt tokens of ended requests.")
        self._output = counter("generation_tokens", "Tokens generated for ended requests.")
        self._queries = counter("prefix_cache_queries", "Prompt tokens looked up in the cache.")
        self._hits = counter("prefix_cache_hits", "Prompt tokens found in the cache.")
        self._hit_rate = catalogue.gauge(
            "prefix_cache_hit_rate", "Prompt tokens found by those looked up, since the start."
        )
        lengths = buckets.lengths_up_to(engine.model.max_model_len)
        self._prompt_size = times("request_prompt_tokens", "Prompt tokens.", buckets=lengths)
        self._output_size = times("request_generation_tokens", "Tokens made.", buckets=lengths)
        self._most = times(
            "request_max_new_tokens", "Tokens a request was given room for.", buckets=lengths
        )
        self._queue_time = times(
            "request_queue_time_seconds", "In the scheduler's queue.", buckets=buckets.QUEUE
        )
        self._prefill_time = times(
            "request_prefill_time_seconds", "First forward to prompt's end.", buckets=buckets.QUEUE
        )
        self._decode_time = times(
            "request_decode_time_seconds", "First token to last.", buckets=buckets.QUEUE
        )
        self._inference_time = times(
            "request_inference_time_seconds", "First forward to end.", buckets=buckets.QUEUE
        )
        self._first_token = times(
            "time_to_first_token_seconds", "Arrival to first token.", buckets=buckets.FIRST_TOKEN
        )
        self._per_token = times(
            "request_time_per_output_token_seconds",
            "The whole time by the number of output tokens.",
            buckets=buckets.PER_TOKEN,
        )
        self._whole = times(
            "e2e_request_latency_seconds", "Arrival to end.", buckets=buckets.WHOLE_REQUEST
        )

    def finished(self, request: FinishedRequest) -> None:
        """Take a request that left the engine."""
        self._count(request)
        start, end = request.received_at, request.finished_at
        _observe(self._queue_time, request.submitted_at, later=request.scheduled_at)
        _observe(self._prefill_time, request.scheduled_at, later=request.prefilled_at)
        _observe(self._inference_time, request.scheduled_at, later=end)
        _observe(self._decode_time, request.first_token_at, later=end)
        _observe(self._first_token, start, later=request.first_token_at)
        self._whole.observe(end - start)
        if request.output_tokens:
            self._per_token.observe((end - start) / request.output_tokens)

    def count_refused(self) -> None:
        """Take what was refused since the last call."""
        now = self._requests.num_refused
        if now != self._num_refused:
            self._refused.add(now - self._num_refused)
            self._num_refused = now

    def _count(self, request: FinishedRequest) -> None:
        reason = request.reason
        self._ended.add()
        self._ended_by[_end(reason)].add()
        if reason.kind is not FinishKind.ABORT:
            self._success.add()
        if reason.error_type == NO_NUMBERS:
            self._nan.add()
        self._prompt.add(request.prompt_tokens)
        self._output.add(request.output_tokens)
        if request.scheduled_at is not None:
            self._queries.add(request.prompt_tokens)
            self._hits.add(request.cached_tokens)
            self._hit_rate.set(self._hits.value / self._queries.value)
        self._prompt_size.observe(request.prompt_tokens)
        self._output_size.observe(request.output_tokens)
        if request.max_new_tokens is not None:
            self._most.observe(request.max_new_tokens)


def _end(reason: FinishReason) -> str:
    if reason.kind is not FinishKind.ABORT:
        return str(reason.kind.value)
    is_outside = reason.error_type == FROM_OUTSIDE and reason.status_code is None
    return "abort" if is_outside else "error"


def _observe(histogram: Histogram, earlier: float | None, *, later: float | None) -> None:
    """The time between two marks, if the request came by both."""
    if earlier is not None and later is not None:
        histogram.observe(max(0.0, later - earlier))
