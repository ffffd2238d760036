# SPDX-License-Identifier: MIT
"""What the executor did, in numbers: plain ones, which the loop tells the instruments now and then.

Workers add to them while they hold the executor's lock anyway; whoever reads them needs none.
"""

from __future__ import annotations

from collections import Counter, deque

from attrs import define, field

from tokenspeed_hookspecs import StorageOperationKind
from tokenspeed_l3.jobs import QUERY, Job
from tokenspeed_l3.report import Completion

KEPT_TIMES = 10_000


@define(eq=False)
class Figures:
    """Totals since the start, by kind of operation; `seconds` are those not told yet."""

    operations: Counter[StorageOperationKind] = field(factory=Counter)
    failures: Counter[StorageOperationKind] = field(factory=Counter)
    hits: Counter[StorageOperationKind] = field(factory=Counter)
    misses: Counter[StorageOperationKind] = field(factory=Counter)
    damaged: int = 0
    num_bytes: Counter[StorageOperationKind] = field(factory=Counter)
    refused: int = 0
    seconds: deque[tuple[StorageOperationKind, float]] = field(
        factory=lambda: deque(maxlen=KEPT_TIMES)
    )

    def took(self, job: Job, completion: Completion, *, seconds: float) -> None:
        """The store answered."""
        kind, asked = job.kind, job.asked
        good = [at for at in asked if completion.success[at]]
        self.operations[kind] += 1
        self.hits[kind] += len(good)
        self.misses[kind] += len(asked) - len(good)
        self.damaged += sum(completion.failed)
        if kind is not QUERY:
            groups = (job.operation.keys[at].group for at in good)
            self.num_bytes[kind] += sum(job.site.parts[group].page_bytes for group in groups)
        self.seconds.append((kind, seconds))

    def failed(self, kind: StorageOperationKind, *, seconds: float) -> None:
        """The store did not answer, or nonsense."""
        self.operations[kind] += 1
        self.failures[kind] += 1
        self.seconds.append((kind, seconds))
