# SPDX-License-Identifier: MIT
"""A log line for every batch with prompt tokens, and one for every so many decode batches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from attrs import field, frozen

from tokenspeed_hookspecs import Batch, Engine, Plugin, Round, hookimpl

REMEMBERED = 65_536


class BatchLog(Plugin):
    """Counts forwards when they are dispatched, and decoded tokens when they are committed."""

    name = "batch_log"

    @frozen
    class Options:
        """When the log speaks."""

        enabled: bool = field(default=True, metadata={"help": "log batches"})
        interval: int = field(
            default=40, metadata={"help": "forwards between two decode lines", "minimum": 1}
        )
        draft_steps: int = field(
            default=0, metadata={"help": "draft tokens of a decode step; 0 is none", "minimum": 0}
        )

    def __init__(self, options: Options, engine: Engine) -> None:
        super().__init__(options, engine)
        # One line a replica: its first member speaks.
        self._speaks = options.enabled and engine.ranks.replica.index == 0
        ranks = engine.ranks
        number = ranks.rank // ranks.replica.size
        self._label = "" if ranks.dp is None else f" DP rank {number}"
        self._prefilling: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._num_forwards = 0
        self._since = engine.clock()
        self._tokens = 0
        self._rows = 0

    @hookimpl
    def iteration(self, round: Round) -> None:
        batch = round.batch
        if not self._speaks or batch is None:
            return
        self._num_forwards += 1
        if batch.num_extends:
            self._log_prefill(batch)
        elif self._num_forwards % self.options.interval == 0:
            self._log_decode(batch)

    @hookimpl
    def committed(self, round: Round) -> None:
        forward = round.forward
        if not self._speaks or forward is None or forward.batch.num_extends:
            return
        rows = len(forward.batch.request_ids)
        lengths = forward.result.lengths
        self._rows += rows
        self._tokens += rows if lengths is None else int(sum(lengths))

    def _log_prefill(self, batch: Batch) -> None:
        rows = len(batch.request_ids)
        self.engine.log.info(
            "%s batch%s, #new-seq: %d, #new-token: %d, #cached-token: %d, #running-req: %d, "
            "#queue-req: %d",
            "Prefill" if batch.num_extends == rows else "Mix",
            self._label,
            batch.num_extends,
            sum(batch.input_lengths),
            self._newly_cached(batch),
            rows,
            self.engine.scheduler.sizes.waiting,
        )

    def _newly_cached(self, batch: Batch) -> int:
        """Prefix tokens of rows not seen prefilling before; a later chunk's prefix is its own."""
        extends = range(batch.num_extends)
        keys = [(batch.request_ids[row], batch.incarnations[row]) for row in extends]
        new = [row for row in extends if keys[row] not in self._prefilling]
        self._remember(keys)
        return sum(batch.extend_prefix_lens[row] for row in new)

    def _remember(self, keys: Iterable[tuple[str, int]]) -> None:
        for key in keys:
            self._prefilling[key] = None
        while len(self._prefilling) > REMEMBERED:
            self._prefilling.popitem(last=False)

    def _log_decode(self, batch: Batch) -> None:
        sizes, now = self.engine.scheduler.sizes, self.engine.clock()
        seconds = now - self._since
        cached = sizes.total_pages - sizes.empty_pages - sizes.active_pages
        self.engine.log.info(
            "Decode batch%s, #running-req: %d, #pages(active/cached/total): %d/%d/%d, "
            "page ratio: %.2f, gen throughput (token/s): %.2f, %s#queue-req: %d",
            self._label,
            len(batch.request_ids),
            sizes.active_pages,
            cached,
            sizes.total_pages,
            sizes.active_pages / sizes.total_pages if sizes.total_pages else 0.0,
            self._tokens / seconds if seconds > 0 else 0.0,
            self._drafts(),
            sizes.waiting,
        )
        self._since, self._tokens, self._rows = now, 0, 0

    def _drafts(self) -> str:
        steps = self.options.draft_steps
        if not steps:
            return ""
        accepted = self._tokens / self._rows if self._rows else 0.0
        rate = max(0.0, accepted - 1) / steps
        return f"avg_accept_len: {accepted:.2f}, accept_rate: {rate:.2f}, "
