# SPDX-License-Identifier: MIT
"""From the wheel's batch to the one the device runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import define

from tokenspeed_core.scheduling.batches import decode_batch, mixed_batch
from tokenspeed_core.scheduling.endings import Endings
from tokenspeed_core.scheduling.entrance import Entrance
from tokenspeed_core.scheduling.flight import Flight, Forward, Rows
from tokenspeed_core.scheduling.native_events import EventQueue
from tokenspeed_core.scheduling.population import Population, Stage
from tokenspeed_core.scheduling.withholding import without_rows
from tokenspeed_hookspecs import Batch


@define(eq=False, kw_only=True)
class Dispatching:
    """Translates batches; rows that only decode cost one comparison of ids while none changes."""

    population: Population
    entrance: Entrance
    endings: Endings
    flight: Flight
    queue: EventQueue
    decode_width: int
    _steady: Rows | None = None

    def batch(self, natives: Sequence[Any]) -> Batch | None:
        """The rows to run, entered as in flight; None where there are none.

        A plan has one native batch, empty when idle, and none at all while forwards are forbidden.
        """
        native: Any = natives[0] if natives else None
        request_ids = native.request_ids if native is not None else ()
        if not request_ids:
            self._steady = None
            return None
        steady = self._steady
        # The same ids in two plans running, and no prompt chunk: the same requests in the same
        # slots, for an id that left comes back through a chunk or after a restore.
        if (
            steady is not None
            and self.endings.num_held == 0
            and steady.request_ids == request_ids
            and native.num_extends() == 0
        ):
            batch = decode_batch(native, steady, width=self.decode_width)
            self.flight.add(Forward(batch, steady, frozenset()))
            return batch
        rows = self._rows(native, request_ids)
        batch = mixed_batch(native, rows)
        self._steady = rows if rows.num_extends == 0 else None
        if self.endings.num_held:
            return self._withhold(batch, rows)
        self.flight.add(Forward.of(batch, rows))
        return batch

    def _rows(self, native: Any, request_ids: Sequence[str]) -> Rows:
        num_extends = native.num_extends()
        requests = [self.population[name] for name in request_ids]
        for request in requests[:num_extends]:
            self.entrance.begin(request, Stage.PREFILLING)
        for request in requests[num_extends:]:
            self.entrance.begin(request, Stage.DECODING)
        slots = np.array(native.request_pool_indices, np.int64)
        return Rows.of(requests, slots=slots, num_extends=num_extends)

    def _withhold(self, batch: Batch, rows: Rows) -> Batch | None:
        """Keep the rows of requests that wait for their abort from the device.

        Each further forward would hold the abort longer, at depth 1 for ever.
        """
        self._steady = None
        ended = [row for row, one in enumerate(rows.requests) if one.stage is Stage.ENDED]
        for row in ended:
            rows.results[row].tokens = ()
        self.queue.add([rows.results[row] for row in ended])
        if len(ended) == len(rows.requests):
            return None
        kept = without_rows(batch, ended)
        others = [one for one in rows.requests if one.stage is not Stage.ENDED]
        remaining = Rows.of(others, slots=kept.slots, num_extends=kept.num_extends)
        self.flight.add(Forward.of(kept, remaining))
        return kept
