# SPDX-License-Identifier: MIT
"""What the ranks of a replica make of their reports."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from tokenspeed_hookspecs import StorageKey, StorageOperation, StorageOperationKind
from tokenspeed_l3.agreement import Agreement
from tokenspeed_l3.errors import L3Error
from tokenspeed_l3.report import Completion, Report, decode, encode

KEYS = [StorageKey("full", f"{number:064x}", 0) for number in range(4)]


def operation(
    op_id: int, kind: StorageOperationKind = StorageOperationKind.GET
) -> StorageOperation:
    """An operation of four keys."""
    return StorageOperation(op_id, kind, KEYS, [1, 2, 3, 4])


def done(
    op_id: int,
    success: Sequence[int] = (1, 1, 1, 1),
    failed: Sequence[int] = (0, 0, 0, 0),
    *,
    is_retired: bool = True,
) -> Completion:
    """A member's completion."""
    return Completion(op_id, bytes(success), bytes(failed), is_retired)


def begun(num_members: int, *op_ids: int) -> Agreement:
    """An agreement with these gets open."""
    agreement = Agreement(num_members)
    agreement.begin([operation(op_id) for op_id in op_ids])
    return agreement


def reports(*members: Report) -> list[bytes]:
    """The members' bytes."""
    return [encode(each) for each in members]


@pytest.mark.parametrize(
    ("first", "second", "success", "failed"),
    [
        (((1, 1, 1, 1), (0, 0, 0, 0)), ((1, 1, 0, 0), (0, 0, 0, 0)), [1, 1, 0, 0], [0, 0, 0, 0]),
        (((0, 1, 0, 1), (0, 0, 0, 0)), ((1, 0, 0, 1), (0, 0, 0, 0)), [0, 0, 0, 1], [0, 0, 0, 0]),
        (((1, 0, 1, 1), (0, 1, 0, 0)), ((1, 1, 1, 1), (0, 0, 0, 0)), [1, 0, 1, 1], [0, 1, 0, 0]),
        (((1, 0, 0, 1), (0, 1, 1, 0)), ((0, 1, 0, 1), (1, 0, 1, 0)), [0, 0, 0, 1], [1, 1, 1, 0]),
    ],
)
def test_a_page_is_there_if_all_members_have_it_and_bad_if_one_part_is(
    first: tuple[Sequence[int], Sequence[int]],
    second: tuple[Sequence[int], Sequence[int]],
    success: list[int],
    failed: list[int],
) -> None:
    """Success is the least of the members', failure the most."""
    agreement = begun(2, 7)
    told = [Report(completions=[done(7, *each)]) for each in (first, second)]
    agreed = agreement.agree(reports(*told), now_us=1)
    (result,) = agreed.results
    assert ([*map(int, result.success)], [*map(int, result.failed)]) == (success, failed)
    assert agreement.num_open == 0


@pytest.mark.parametrize("retired", list(itertools.product([True, False], repeat=2)))
def test_pages_are_let_go_only_when_every_member_let_go(retired: tuple[bool, bool]) -> None:
    """One rank whose transport may still write keeps the pages on all."""
    told = [Report(completions=[done(3, is_retired=each)]) for each in retired]
    (result,) = begun(2, 3).agree(reports(*told), now_us=1).results
    assert result.is_retired is all(retired)


def test_what_one_member_lacks_is_held_back_until_it_comes() -> None:
    """A late member delays an operation for all, and others pass it."""
    agreement = begun(2, 1, 2)
    first = agreement.agree(reports(Report(completions=[done(1)]), Report()), now_us=1)
    assert first.results == ()
    both = [Report(completions=[done(2)])] * 2
    assert [each.op_id for each in agreement.agree(reports(*both), now_us=1).results] == [2]
    late = [Report(), Report(completions=[done(1, (1, 1, 0, 0))])]
    last = agreement.agree(reports(*late), now_us=1)
    assert [(each.op_id, [*map(int, each.success)]) for each in last.results] == [(1, [1, 1, 0, 0])]


def test_results_come_in_the_order_of_their_ids() -> None:
    """Whatever order stores finish in."""
    agreement = begun(1, 5, 2, 9)
    told = Report(completions=[done(9), done(2), done(5)])
    assert [each.op_id for each in agreement.agree(reports(told), now_us=1).results] == [2, 5, 9]


def test_the_clock_never_goes_back() -> None:
    """The scheduler refuses a step back, so one is held."""
    agreement = Agreement(2)
    told = [agreement.agree(reports(Report(), Report()), now_us=now) for now in (10, 12, 11, 13)]
    assert [each.now_us for each in told] == [10, 12, 12, 13]


def test_pressure_is_the_most_and_availability_the_least() -> None:
    """The slowest member decides, figure by figure."""
    told = reports(Report(3, 100, 7), Report(2, 900, 8, False))
    agreed = Agreement(2).agree(told, now_us=1)
    pressure = (agreed.queued_operations, agreed.queued_bytes, agreed.oldest_operation_us)
    assert (pressure, agreed.is_available) == ((3, 900, 8), False)


@pytest.mark.parametrize(
    ("told", "text"),
    [
        ([encode(Report())], "2 replica members, got 1"),
        ([encode(Report()), b""], "member 1, 0 bytes"),
        ([b"\xc1", encode(Report())], "member 0"),
        (reports(Report(), Report(completions=[done(8)])), "8, which is not open"),
        (reports(Report(), Report(completions=[done(1), done(1)])), "completed before"),
        (
            reports(Report(), Report(completions=[Completion(1, b"\1", b"\0")])),
            "has 4 keys, replica member 1 answers for 1",
        ),
    ],
)
def test_a_report_that_cannot_be_is_a_fault_that_names_the_member(
    told: list[bytes], text: str
) -> None:
    """A lost report, one of another version, and completions of what is not open."""
    with pytest.raises(L3Error, match=text):
        begun(2, 1).agree(told, now_us=1)


def test_cancels_are_not_waited_for() -> None:
    """They have no answer of their own."""
    agreement = Agreement(1)
    agreement.begin([operation(4, StorageOperationKind.CANCEL)])
    assert agreement.num_open == 0


def test_a_report_is_bounded_by_what_may_be_open() -> None:
    """Two bytes a key and a few an operation, when all of them end in one round."""
    ended = [Completion(2**40 + op_id, b"\1" * 1024, bytes(1024)) for op_id in range(64)]
    assert len(encode(Report(64, 2**40, 2**40, False, ended))) < 64 * (2 * 1024 + 24)


def test_a_report_survives_its_bytes() -> None:
    """Every field comes back."""
    report = Report(1, 2**50, 3, False, [done(1, is_retired=False), done(2)])
    assert decode(encode(report), member=0) == report
    assert len(encode(Report())) < 10
