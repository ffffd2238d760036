# SPDX-License-Identifier: MIT
"""Cache operations that were dispatched and not yet handed to the scheduler.

An acknowledgment may arrive in any later round, in any order, and on each replica member in another
round; the scheduler hears of it once, in the same round everywhere, in the order of operation ids.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from tokenspeed_core.errors import EngineError
from tokenspeed_hookspecs import (
    CacheAcknowledgment,
    CacheOperation,
    CacheOperationKind,
    Group,
)

_Key = tuple[int, str]


class CacheLedger:
    """Counts what is open, and keeps what only some members have."""

    def __init__(self, replica: Group) -> None:
        self._replica = replica
        self._open: set[_Key] = set()
        self._ready: set[_Key] = set()

    @property
    def num_open(self) -> int:
        """Operations whose acknowledgment the scheduler still waits for."""
        return len(self._open)

    def dispatched(self, operations: Iterable[CacheOperation]) -> None:
        """Count a plan's operations; the plan is certain to be executed."""
        for operation in operations:
            if operation.kind is not CacheOperationKind.OTHER:
                self._open.add((operation.op_id, operation.kind.value))

    def acknowledge(self, polled: Sequence[CacheAcknowledgment]) -> list[CacheAcknowledgment]:
        """Take this member's acknowledgments; return those every member has now."""
        for done in polled:
            key = (done.op_id, done.kind.value)
            if key not in self._open or key in self._ready:
                raise EngineError(
                    f"the data plane acknowledged {done.kind.value} operation {done.op_id}, which "
                    "was never dispatched or was acknowledged before"
                )
            self._ready.add(key)
        agreed = self._ready if self._replica.size == 1 else self._agree()
        self._open -= agreed
        self._ready = self._ready - agreed
        return [CacheAcknowledgment(op, CacheOperationKind(kind)) for op, kind in sorted(agreed)]

    def _agree(self) -> set[_Key]:
        mine = json.dumps(sorted(self._ready)).encode()
        members = [json.loads(payload) for payload in self._replica.gather(mine)]
        return set.intersection(*({(op, kind) for op, kind in keys} for keys in members))
