# SPDX-License-Identifier: MIT
"""Faults planted in the engine's own code: the simulation finds them within a few hundred seeds.

Each is a small change of one function. A run with a planted fault happens in a process of its own,
for some end it.
"""

from __future__ import annotations
import __future__

import importlib
import inspect
import logging
import os
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from attrs import frozen

from tokenspeed_core.testing.simulation.plan import Plan
from tokenspeed_core.testing.simulation.run import SimulationError, simulate

FOUND, NOT_FOUND = 0, 1


@frozen
class Planted:
    """In the function at `place`, `old` becomes `new`; `seed` is the first that finds it, None if
    none of several hundred does."""

    seed: int | None
    module: str
    place: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.place}: {self.old.strip()} -> {self.new.strip() or 'nothing'}"


LOOP, ADMISSION = "loop.event_loop", "loop.admission"
COMMIT, TABLE, OUTBOX = "requests.commit", "requests.table", "requests.outbox"
FAULTS = [
    Planted(1, LOOP, "EventLoop.round", "self._admission.run_stages()", "pass"),
    Planted(9, LOOP, "EventLoop.round", "self._change_pause()", "pass"),
    Planted(0, LOOP, "EventLoop._commit_down_to", "> depth", "> depth + 1"),
    Planted(0, LOOP, "EventLoop._commit_down_to", ".popleft()", ".pop()"),
    Planted(3, LOOP, "EventLoop._plan", "self.ledger.dispatched(plan.operations)", "pass"),
    Planted(0, LOOP, "EventLoop._drain", "self._plane.release(outbox.released)", "pass"),
    Planted(0, LOOP, "EventLoop._drain", "outbox.start_over()", "pass"),
    Planted(9, LOOP, "EventLoop._change_pause", "self._admission.release_withheld()", "pass"),
    Planted(18, LOOP, "EventLoop._advance_head", "self.controls.forwards_blocked", "False"),
    Planted(17, LOOP, "EventLoop._tick", "allowed = not round.frozen", "allowed = True"),
    Planted(0, ADMISSION, "Admission.register", "self._parts.data_plane.admit(", "repr("),
    Planted(1, ADMISSION, "Admission._settle", "still + stage.held", "stage.held"),
    Planted(0, ADMISSION, "Admission._settle", "stage.held = stage.held[len(codes) :]", "pass"),
    Planted(23, ADMISSION, "Admission.drop", "stage.held.remove(submission)", "pass"),
    Planted(9, ADMISSION, "Admission._submit", "if self._controls.admissions_blocked:",
            "if False:"),
    Planted(9, ADMISSION, "Admission._submit", "self._outbox.end(submission.state)", "pass"),
    Planted(9, ADMISSION, "Admission._submit", "self._withheld += submissions", "pass"),
    Planted(9, ADMISSION, "Admission.release_withheld", "self._withheld = self._withheld, []",
            "_ = self._withheld, []"),
    Planted(159, ADMISSION, "Admission.held_ids", "in self._stages for", "in self._stages[1:] for"),
    Planted(3, "loop.cache_ledger", "CacheLedger.acknowledge", "self._open -= agreed", "pass"),
    Planted(3, "loop.cache_ledger", "CacheLedger.acknowledge", "sorted(agreed)",
            "sorted(agreed)[1:]"),
    Planted(92, "loop.cache_ledger", "CacheLedger._agree", "set.intersection", "set.union"),
    Planted(4, "loop.registered", "RegisteredRequests.abort", "self._outbox.end(state)", "pass"),
    Planted(159, "loop.registered", "RegisteredRequests.abort",
            "self._admission.drop(request_id) or", ""),
    Planted(159, "loop.controls", "Controls._begin_drain", "self._cancel_unscheduled = True",
            "pass"),
    Planted(13, "loop.controls", "Controls.pause", 'self._abort_all = mode == "abort"', "pass"),
    Planted(0, "loop.controls", "Controls.finish_drain", "self.reply(done(drain.name))", "pass"),
    Planted(0, "loop.controls", "Controls.take_replies", "self._replies = self._replies, []",
            "_ = self._replies, []"),
    Planted(0, "loop.drains", "Drains.finish", "or num_in_flight", ""),
    Planted(28, "loop.drains", "Drains._is_over", "if sizes.waiting or", "if"),
    Planted(1, "loop.gate", "Gate.run", "if is_cleared else refused(FLUSH, reason)",
            "and None"),
    Planted(0, COMMIT, "_Commit._commit_row", "self.outbox.end(state)", "pass"),
    Planted(1, COMMIT, "_Commit._commit_row", "row in self.nan_rows or", ""),
    Planted(0, COMMIT, "_Commit._commit_extend", "if batch.is_mid_chunk(row):", "if False:"),
    Planted(8, COMMIT, "_Commit._commit_extend", "state.has_nan_chunk = True",
            "pass"),
    Planted(3, COMMIT, "_is_due", "(len(state.output_ids) - 1)", "len(state.output_ids)"),
    Planted(1, COMMIT, "_Commit._commit_plain", "if table.version != rows.version:", "if False:"),
    Planted(1, COMMIT, "_Commit._commit_plain", "plain[row - first] = False", "pass"),
    Planted(0, COMMIT, "_Commit._commit_plain", "plain = counts <", "plain = counts <="),
    Planted(0, COMMIT, "_Commit._take_tokens",
            "state.output_ids.append(int(self.tokens.array[at]))",
            "state.output_ids.insert(0, int(self.tokens.array[at]))"),
    Planted(33, COMMIT, "_Commit._take_some", "state.sent = len(state.output_ids)", "pass"),
    Planted(13, TABLE, "RequestTable.mark_abort", "self.attention[state.column] = 0", "pass"),
    Planted(4, TABLE, "RequestTable.mark_abort", "state.notify = notify", "state.notify = True"),
    Planted(0, TABLE, "RequestTable.remove", "state.is_live = False", "pass"),
    Planted(1, TABLE, "RequestTable.remove", "self.version += 1", "pass"),
    Planted(3, TABLE, "RequestTable.refresh", "due = state.budget", "due = state.budget + 1"),
    Planted(0, OUTBOX, "Outbox.end", "self._table.remove(state)", "pass"),
    Planted(0, OUTBOX, "Outbox.end", "self.released.append(state.request_id)", "pass"),
    Planted(0, OUTBOX, "Outbox.chunk", "outputs.token_ids.extend(new)",
            "outputs.token_ids += new[1:]"),
    Planted(0, "scheduling.answering", "Answering.commit", "self.flight.pop()", "pass"),
    Planted(0, "scheduling.endings", "Endings.forget_answered", "self.population.forget(request)",
            "pass"),
    Planted(0, OUTBOX, "Outbox.chunk", "state.sent = len(state.output_ids)", "pass"),
    Planted(6, "scheduling.endings", "Endings.end", "self.flight.mark_late(request.request_id)",
            "pass"),
    Planted(None, "scheduling.endings", "Endings.release_aborts",
            "if not self.flight.names(request.request_id):", "if True:"),
    Planted(None, "scheduling.operations", "_rank", "return 0", "return 1"),
    Planted(10, "scheduling.native", "NativeScheduler.cancel", "self._endings.end(request)",
            "pass"),
    Planted(0, "requests.finish", "FinishRules.after_token", "state.sampling.stop_token_ids", "()"),
]  # fmt: skip


@contextmanager
def planted(fault: Planted) -> Iterator[None]:
    """The engine with the fault in it."""
    owner: Any = importlib.import_module(f"tokenspeed_core.{fault.module}")
    *path, name = fault.place.split(".")
    for each in path:
        owner = getattr(owner, each)
    before = inspect.getattr_static(owner, name)
    source = textwrap.dedent(inspect.getsource(getattr(before, "fget", before)))
    assert fault.old in source, f"{fault.place} has no {fault.old!r} any more:\n{source}"
    changed = source.replace(fault.old, fault.new, 1)
    flags = __future__.annotations.compiler_flag
    code = compile(changed, fault.place, "exec", flags, dont_inherit=True)
    scope = dict(vars(importlib.import_module(f"tokenspeed_core.{fault.module}")))
    exec(code, scope)  # noqa:S102  # the fault that is planted
    function = scope[name]
    setattr(owner, name, function)
    try:
        yield
    finally:
        setattr(owner, name, before)


def is_found(fault: Planted, seed: int) -> bool:
    """Whether a process with the fault in it fails on this seed, or is ended by it."""
    child = os.fork()
    if child == 0:
        logging.disable(logging.CRITICAL)
        code = NOT_FOUND
        try:
            with planted(fault):
                simulate(Plan.of(seed))
        except SimulationError:
            code = FOUND
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) != NOT_FOUND


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.seed is not None], ids=str)
def test_a_planted_fault_is_found(fault: Planted) -> None:
    """Its seed passes without the fault (others test that) and fails with it."""
    assert fault.seed is not None
    assert is_found(fault, fault.seed)


def test_nearly_all_are_found() -> None:
    """Of at least forty faults, seeds of the first thousand find at least 95 of 100."""
    found = [fault for fault in FAULTS if fault.seed is not None and fault.seed < 1000]
    assert len(found) >= 40
    assert len(found) >= 0.95 * len(FAULTS)


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_each_planted_fault_can_be_planted(fault: Planted) -> None:
    """The code still has what the fault changes."""
    with planted(fault):
        pass
