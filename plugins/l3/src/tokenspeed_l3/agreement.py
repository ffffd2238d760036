# SPDX-License-Identifier: MIT
"""One view of the store for all ranks of a replica, from the reports that ride the relay.

Ranks plan alike, so all have the same operations open, while their stores finish at different times
and differently. Everything here is a function of the reports in member order: an operation ends in
the round in which the last member's completion is known, and with the least that any member has.
There is no exchange of its own, and nothing local decides.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field, frozen

from tokenspeed_hookspecs import StorageOperation, StorageOperationKind, StorageResult
from tokenspeed_l3.errors import L3Error
from tokenspeed_l3.report import QUIET_BYTES, Completion, Report, decode


@frozen
class Agreed:
    """What a tick is made of."""

    now_us: int
    queued_operations: int = 0
    queued_bytes: int = 0
    oldest_operation_us: int = 0
    is_available: bool = True
    results: tuple[StorageResult, ...] = ()


@define(eq=False)
class _Open:
    """An operation that the scheduler waits for, and which members have completed it."""

    num_keys: int
    completions: dict[int, Completion] = field(factory=dict)


class Agreement:
    """The open operations of a replica of `num_members` ranks."""

    def __init__(self, num_members: int) -> None:
        self._num_members = num_members
        self._open: dict[int, _Open] = {}
        self._now_us = 0

    @property
    def num_open(self) -> int:
        """Operations that some member has not completed."""
        return len(self._open)

    def begin(self, operations: Sequence[StorageOperation]) -> None:
        """Learn of what was planned; each query, get and put is to be completed by every member."""
        for operation in operations:
            if operation.kind is not StorageOperationKind.CANCEL:
                self._open[operation.op_id] = _Open(len(operation.keys))

    def agree(self, payloads: Sequence[bytes], *, now_us: int) -> Agreed:
        """This round's view, from each member's report and the first member's clock. L3Error: a
        report is missing, does not decode, or completes what is not open."""
        if len(payloads) != self._num_members:
            raise L3Error(
                f"expected a storage report of each of {self._num_members} replica members, got "
                f"{len(payloads)}"
            )
        # The scheduler takes no step back, whatever a clock does.
        self._now_us = max(self._now_us, now_us)
        if payloads.count(QUIET_BYTES) == self._num_members:
            return Agreed(self._now_us)
        reports = [decode(each, member=member) for member, each in enumerate(payloads)]
        touched: set[int] = set()
        for member, report in enumerate(reports):
            touched.update(self._take(member, report))
        return Agreed(
            now_us=self._now_us,
            queued_operations=max(each.queued_operations for each in reports),
            queued_bytes=max(each.queued_bytes for each in reports),
            oldest_operation_us=max(each.oldest_operation_us for each in reports),
            is_available=all(each.is_available for each in reports),
            results=tuple(self._ended(sorted(touched))),
        )

    def _take(self, member: int, report: Report) -> list[int]:
        for completion in report.completions:
            operation = self._open.get(completion.op_id)
            if operation is None or member in operation.completions:
                state = "is not open" if operation is None else "it completed before"
                raise L3Error(
                    f"replica member {member} completes storage operation {completion.op_id}, "
                    f"which {state}; members must plan alike and complete each operation once"
                )
            lengths = {len(completion.success), len(completion.failed)}
            if lengths != {operation.num_keys}:
                raise L3Error(
                    f"storage operation {completion.op_id} has {operation.num_keys} keys, replica "
                    f"member {member} answers for {len(completion.success)}"
                )
            operation.completions[member] = completion
        return [each.op_id for each in report.completions]

    def _ended(self, touched: Sequence[int]) -> list[StorageResult]:
        """What every member has completed by now; the rest is held back."""
        ended = [
            op_id for op_id in touched if len(self._open[op_id].completions) == self._num_members
        ]
        return [_joined(op_id, self._open.pop(op_id)) for op_id in ended]


def _joined(op_id: int, operation: _Open) -> StorageResult:
    """A page is there if every member has its part, and bad if any part is; the scheduler refuses
    a page that is both."""
    completions = list(operation.completions.values())
    failed = [any(parts) for parts in zip(*(each.failed for each in completions), strict=True)]
    landed = [all(parts) for parts in zip(*(each.success for each in completions), strict=True)]
    return StorageResult(
        op_id=op_id,
        success=[good and not bad for good, bad in zip(landed, failed, strict=True)],
        failed=failed,
        is_retired=all(each.is_retired for each in completions),
    )
