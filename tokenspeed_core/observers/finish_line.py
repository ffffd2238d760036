# SPDX-License-Identifier: MIT
"""One log line for every registered request that ended, with or without its statistics."""

from __future__ import annotations

from attrs import field, frozen

from tokenspeed_core.observers.safe_text import safe
from tokenspeed_hookspecs import Engine, FinishedRequest, FinishKind, Plugin, Round, hookimpl


class FinishLine(Plugin):
    """Speaks on the first member of each replica, which owns its requests' streams."""

    name = "finish_line"

    @frozen
    class Options:
        """What a line says."""

        enabled: bool = field(default=True, metadata={"help": "log finished requests"})
        stats: bool = field(default=False, metadata={"help": "log each request's statistics"})

    def __init__(self, options: Options, engine: Engine) -> None:
        super().__init__(options, engine)
        self._speaks = options.enabled and engine.ranks.replica.index == 0

    @hookimpl
    def request_finished(self, round: Round) -> None:
        finished = round.finished
        if not self._speaks or finished is None:
            return
        request_id = safe(finished.request_id)
        if self.options.stats:
            self.engine.log.info("Req: %s Finish! RequestStats(%s)", request_id, stats(finished))
        elif finished.prefilled_at is not None:
            self.engine.log.info("Req: %s Finish! Accept_num_tokens_avg: %s", request_id, 0.0)


def stats(finished: FinishedRequest) -> str:
    """Return a request's statistics in their order; a time that was never reached gives 0."""
    start, end = finished.received_at, finished.finished_at
    decoding_s = _between(finished.first_token_at, end)
    decoded = max(0, finished.output_tokens - 1)
    values = {
        "status": "aborted" if finished.reason.kind is FinishKind.ABORT else "finished",
        "reason": finished.reason.kind.value,
        "prompt_tokens": finished.prompt_tokens,
        "cache_tokens": finished.cached_tokens,
        "output_tokens": finished.output_tokens,
        "cache_hit_rate": f"{_ratio(finished.cached_tokens, finished.prompt_tokens):.4f}",
        "queue_ms": _ms(_between(start, finished.scheduled_at)),
        "prefill_ms": _ms(_between(finished.scheduled_at, finished.prefilled_at)),
        "ttft_ms": _ms(_between(start, finished.first_token_at)),
        "total_ms": _ms(_between(start, end)),
        "preempt_ms": _ms(finished.preempted_s),
        "preempt_count": finished.preemptions,
        "decode_tps": f"{_ratio(decoded, decoding_s):.1f}",
        "acc_len": None,
        "acc_rate": None,
        "recv_ts": f"{start:.3f}",
        "commit_ts": f"{finished.prefilled_at or 0.0:.3f}",
        "finish_ts": f"{end:.3f}",
        **{f"cache_tokens_{tier}": count for tier, count in finished.cached_by_tier.items()},
    }
    return ", ".join(f"{key}={value}" for key, value in values.items())


def _between(earlier: float | None, later: float | None) -> float:
    """Seconds between two marks; 0 where either was never set."""
    return 0.0 if earlier is None or later is None else max(0.0, later - earlier)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f}"
