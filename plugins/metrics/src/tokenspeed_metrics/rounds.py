# SPDX-License-Identifier: MIT
"""What a rank's rounds have to tell: how much runs, waits and is cached, and what each batch held.

Gauges are read from the engine's state and never counted up and down, so none can drift.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tokenspeed_hookspecs import (
    Batch,
    CacheOperationKind,
    Engine,
    ForwardResult,
    Plan,
    Round,
)
from tokenspeed_metrics import buckets
from tokenspeed_metrics.catalogue import Catalogue
from tokenspeed_metrics.group_pages import GroupPages
from tokenspeed_metrics.token_gaps import TokenGaps

LOOKS_EVERY_S = 0.05
MOST_WAITING = 1 << 14  # rounds; with nobody who reads, the oldest go
PAUSES = ("paused", "frozen", "released")


class RoundSeries:
    """Made at the start; a round costs it some microseconds, however many rows there are."""

    def __init__(self, catalogue: Catalogue, engine: Engine) -> None:
        counter, gauge = catalogue.counter, catalogue.gauge
        self._counter = counter
        self._settle = catalogue.settle_if_free
        catalogue.before_reading(self._take_waiting)
        self._requests, self._controls = engine.requests, engine.controls
        self._scheduler = engine.scheduler
        self._rounds = counter("num_rounds", "Scheduling rounds.")
        self._batches: deque[int] = deque(maxlen=MOST_WAITING)  # the tokens of each round's
        self._running = gauge("num_requests_running", "Requests being prefilled or decoded.")
        self._waiting = gauge(
            "num_requests_waiting", "Requests waiting in the scheduler, retracted ones among them."
        )
        self._held = {
            stage: gauge(
                "num_requests_held", "Requests an admission stage holds.", labels={"stage": stage}
            )
            for stage in self._requests.num_held
        }
        self._usage = gauge(
            "kv_cache_usage_perc", "Share of the pages that running requests hold, 0 to 1."
        )
        self._active, self._cached, self._empty = (
            gauge(
                "kv_pages",
                "Pages by use: held by running requests, cached for later ones, empty.",
                labels={"state": state},
            )
            for state in ("active", "cached", "empty")
        )
        self._group_pages = GroupPages(catalogue, engine)
        self._in_flight = gauge("in_flight_forwards", "Forwards dispatched and not committed.")
        self._paused = {
            mode: gauge("paused", "1 for the pause that holds, if any.", labels={"mode": mode})
            for mode in PAUSES
        }
        self._sleeping = gauge("sleeping", "1 while memory is released.")
        self._was_paused, self._looked_at = False, float("-inf")
        self._tokens = catalogue.histogram(
            "iteration_tokens_total", "Tokens of a round's batch.", buckets=buckets.BATCH_TOKENS
        )
        self._preemptions = counter(
            "num_preemptions", "Times a running request's pages were saved and given to another."
        )
        self._capacity_aborts = counter(
            "num_capacity_aborts", "Requests the scheduler dropped, for want of pages."
        )
        self._drafts = counter("spec_decode_num_drafts", "Rows verified with draft tokens.")
        self._draft_tokens = counter("spec_decode_num_draft_tokens", "Draft tokens verified.")
        self._accepted = counter("spec_decode_num_accepted_tokens", "Draft tokens accepted.")
        self._gaps = TokenGaps(
            catalogue.histogram(
                "inter_token_latency_seconds",
                "From one token of a request to its next.",
                buckets=buckets.BETWEEN_TOKENS,
            )
        )

    def _take_drafts(self, batch: Batch, lengths: Sequence[int]) -> None:
        rows = [row for row in range(batch.num_extends, len(lengths)) if lengths[row]]
        self._drafts.add(len(rows))
        self._draft_tokens.add(sum(batch.input_lengths[row] - 1 for row in rows))
        self._accepted.add(sum(lengths[row] - 1 for row in rows))

    def _take_compiles(self, result: ForwardResult) -> None:
        """These series appear with the first compilation: most data planes know of none."""
        text = "Compilations of code while serving."
        self._counter("jit_serving_compiles", text).add(result.compiles)
        text = "Time that compilations took while serving."
        self._counter("jit_serving_compile_seconds", text).add(result.compile_seconds)

    def round_done(self, round: Round) -> bool:
        """Take a round that is over; whether it was time to look at everything."""
        for forward in round.forwards:
            self._gaps.take(forward)
            result = forward.result
            if result.compiles:
                self._take_compiles(result)
            if result.lengths is not None:
                self._take_drafts(forward.batch, result.lengths)
        plan, num_tokens = round.plan, 0
        if plan is not None:
            if plan.batch is not None:
                num_tokens = plan.batch.num_tokens
            if plan.operations or plan.aborts:
                self._take_plan(plan)
        self._batches.append(num_tokens)
        # Nobody reads more often than this, and rounds may be far shorter.
        if round.batch is not None and round.now - self._looked_at < LOOKS_EVERY_S:
            return False
        self._looked_at = round.now
        self._settle()
        self.take_state()
        if not round.frozen:
            self._in_flight.set(round.in_flight)
            # Counting active pages takes long, unless it was done for this round's outputs.
            if round.batch is None or round.load is not None:
                self.take_sizes()
        return True

    def take_state(self) -> None:
        """Read which pause holds now, if any."""
        if not (self._controls.admissions_blocked or self._was_paused):
            return
        state = self._controls.describe()
        for mode, gauge in self._paused.items():
            gauge.set(mode == state["name"])
        self._sleeping.set(bool(state["released"]))
        self._was_paused = self._controls.admissions_blocked

    def _take_waiting(self) -> None:
        """Sort in what rounds left, on whatever thread reads."""
        self._gaps.settle()
        for _ in range(len(self._batches)):
            num_tokens = self._batches.popleft()
            self._rounds.add()
            if num_tokens:
                self._tokens.observe(num_tokens)

    def _take_plan(self, plan: Plan) -> None:
        kinds = [operation.kind for operation in plan.operations]
        self._preemptions.add(kinds.count(CacheOperationKind.SNAPSHOT))
        self._capacity_aborts.add(len(plan.aborts))

    def take_sizes(self) -> None:
        """Read what runs, waits and is held now, on the loop thread."""
        sizes = self._scheduler.sizes
        total, active = sizes.total_pages, sizes.active_pages
        self._running.set(sizes.prefilling + sizes.decoding)
        self._waiting.set(sizes.waiting)
        self._usage.set(active / total if total else 0.0)
        self._active.set(active)
        self._empty.set(sizes.empty_pages)
        self._cached.set(total - sizes.empty_pages - active)
        if self._held:
            for stage, count in self._requests.num_held.items():
                self._held[stage].set(count)
        self._group_pages.take()
