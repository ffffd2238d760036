# SPDX-License-Identifier: MIT
"""Carries out a rank's storage operations on threads of its own.

The loop submits, calls off and reports, and never waits for any of it. Each operation answers once:
with what the store said, or with misses where it could not be asked. A store may be slow, wrong,
down or stuck; what it raises stays here.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from attrs import define, frozen

from tokenspeed_hookspecs import StorageOperationKind
from tokenspeed_l3.errors import L3Error
from tokenspeed_l3.figures import Figures
from tokenspeed_l3.health import Health, HealthState
from tokenspeed_l3.jobs import GET, PUT, QUERY, Job, JobState, is_let_go
from tokenspeed_l3.lane import Lane
from tokenspeed_l3.report import QUIET, Completion, Report
from tokenspeed_l3.store import CountingStore, Store


@frozen(kw_only=True)
class ExecutorSettings:
    """Bounds and workers of each queue, and when a failing store is left alone, and how long."""

    max_operations: int = 64
    query_workers: int = 2
    read_workers: int = 4
    write_workers: int = 2
    failure_threshold: int = 3
    recovery_us: int = 30_000_000

    @property
    def workers(self) -> Mapping[StorageOperationKind, int]:
        """How many threads carry out each kind."""
        return {QUERY: self.query_workers, GET: self.read_workers, PUT: self.write_workers}


def monotonic_us() -> int:
    """The usual clock: not the engine's, because workers read it too."""
    return time.monotonic_ns() // 1000


@define(eq=False)
class _Removal:
    """A removal on a thread of its own, and what came of it."""

    is_done: bool = False


class Executor:
    """`memory` is what the store may touch: it is kept for as long as that is so."""

    def __init__(
        self,
        store: Store,
        settings: ExecutorSettings,
        *,
        memory: object,
        log: logging.Logger,
        now_us: Callable[[], int] = monotonic_us,
    ) -> None:
        self.figures = Figures()
        self._store, self._settings, self._log = store, settings, log
        self._memory, self._now_us = memory, now_us
        self._lock = threading.Lock()
        self._health = Health(settings.failure_threshold, settings.recovery_us)
        self._lanes = {kind: Lane(self._lock) for kind in settings.workers}
        self._jobs: dict[int, Job] = {}  # that have not answered
        self._running: set[Job] = set()  # that a worker is at, answered or not
        self._finished: list[Completion] = []
        self._is_stopping = False
        self._is_quarantined = False
        self._threads = [
            threading.Thread(
                target=self._work, args=(kind,), name=f"l3-{kind.value}-{number}", daemon=True
            )
            for kind, count in settings.workers.items()
            for number in range(count)
        ]

    def start(self) -> None:
        """Start the workers."""
        for thread in self._threads:
            thread.start()

    def leave_alone(self) -> None:
        """Begin as after failures: the store is tried again after the recovery interval."""
        self._health.open(self._now_us())

    # --- the loop's side -------------------------------------------------------------------------

    def submit(self, job: Job) -> None:
        """Take an operation. L3Error: more than the scheduler may have open."""
        done = job.nothing_to_ask()
        with self._lock:
            lane = self._lanes[job.kind]
            if lane.num_queued >= self._settings.max_operations:
                raise L3Error(
                    f"a plan has more than {self._settings.max_operations} storage operations of "
                    f"kind {job.kind.value} open, the limit that the scheduler was given"
                )
            if done is None and (self._is_stopping or not self._health.would_ask(self._now_us())):
                done = job.missed()
                self.figures.refused += 1
            if done is not None:
                self._finished.append(done)
                return
            self._jobs[job.operation.op_id] = job
            lane.put(job)

    def cancel(self, op_id: int) -> None:
        """Call an operation off; one that is done or unknown is left alone.

        What has not begun answers at once, and so does a query: its result is of no use. A get
        answers when the store returns, because until then it may write into the pages.
        """
        with self._lock:
            job = self._jobs.get(op_id)
            if job is None or (job.state is JobState.RUNNING and job.kind is not QUERY):
                return
            self._lanes[job.kind].withdraw(job)
            job.state = JobState.DROPPED
            self._answer(job, job.missed())

    def report(self) -> Report:
        """Everything that ended since the last report, and how things stand."""
        # Without the lock: what a worker adds meanwhile is told in the next round.
        is_quiet = not (self._jobs or self._running or self._finished)
        if is_quiet and self._health.state is HealthState.CLOSED:
            return QUIET
        with self._lock:
            finished, self._finished = self._finished, []
            now = self._now_us()
            return Report(
                queued_operations=sum(lane.num_queued for lane in self._lanes.values()),
                queued_bytes=sum(lane.num_bytes for lane in self._lanes.values()),
                oldest_operation_us=max(0, now - min(self._waiting_since(), default=now)),
                is_available=self._health.would_ask(now),
                completions=sorted(finished, key=lambda each: each.op_id),
            )

    @property
    def health(self) -> HealthState:
        """Whether the store is asked."""
        return self._health.state

    @property
    def num_queued(self) -> Mapping[StorageOperationKind, int]:
        """Operations not begun."""
        return {kind: lane.num_queued for kind, lane in self._lanes.items()}

    @property
    def store_counts(self) -> Mapping[str, int]:
        """What the store counts itself; nothing where it counts nothing, or fails to."""
        try:
            return self._store.counts() if isinstance(self._store, CountingStore) else {}
        except Exception:
            return {}

    def remove_namespace(self, namespace: str, *, limit_s: float) -> bool:
        """Have the store forget a namespace, and wait for it within a limit; False if it could not
        or something still reads or writes."""
        with self._lock:
            if any(job.kind is not QUERY for job in self._jobs.values()):
                self._log.warning("l3: operations run, so namespace %s was not removed", namespace)
                return False
        removal = _Removal()
        thread = threading.Thread(
            target=self._remove, args=(namespace, removal), name="l3-remove", daemon=True
        )
        thread.start()
        thread.join(limit_s)
        if thread.is_alive():
            self._log.warning(
                "l3: the store did not remove namespace %s within %s s", namespace, limit_s
            )
        return removal.is_done

    def stop(self, *, limit_s: float) -> bool:
        """Drop what has not begun, wait for the rest within a limit, close the store; False if it
        is stuck, and then its memory is kept until it lets go."""
        with self._lock:
            self._is_stopping = True
            for lane in self._lanes.values():
                lane.clear()
        closing = threading.Thread(target=self._close, name="l3-close", daemon=True)
        closing.start()
        closing.join(limit_s)
        if not closing.is_alive():
            return True
        self._log.error(
            "l3: the store still runs %s after %s s; the engine ends without it and keeps the host "
            "pages' memory until the store lets go",
            [job.kind.value for job in list(self._running)] or "its close",
            limit_s,
        )
        return False

    # --- the workers' side -----------------------------------------------------------------------

    def _waiting_since(self) -> Sequence[int]:
        """Since when the oldest ones wait. What runs counts too, a put apart: somebody waits for
        it, and a call that does not come back shows only here."""
        queued = [lane.oldest_us for lane in self._lanes.values() if lane.oldest_us is not None]
        running = [job.begun_us for job in self._running if job.kind is not PUT]
        return [*queued, *running]

    def _work(self, kind: StorageOperationKind) -> None:
        lane = self._lanes[kind]
        while True:
            with self._lock:
                job = lane.take(lambda: self._is_stopping)
                if job is None:
                    return
                job.state, job.begun_us = JobState.RUNNING, self._now_us()
                if not self._health.asks(job.begun_us):
                    self.figures.refused += 1
                    self._answer(job, job.missed())
                    continue
                self._running.add(job)
            self._carry_out(job)

    def _carry_out(self, job: Job) -> None:
        try:
            completion = job.run(self._store)
        except BaseException as error:
            self._note_failure(job, error)
            return
        with self._lock:
            self._running.discard(job)
            self._health.succeeded()
            self._is_quarantined |= not completion.is_retired
            self.figures.took(job, completion, seconds=self._seconds(job))
            self._answer(job, completion)

    def _note_failure(self, job: Job, error: BaseException) -> None:
        # A query touches no page.
        is_retired = job.kind is QUERY or (is_let_go(error) and self._failures_retire())
        with self._lock:
            self._running.discard(job)
            has_opened = self._health.failed(self._now_us())
            is_first = self._health.num_failures == 1
            self._is_quarantined |= not is_retired
            self.figures.failed(job.kind, seconds=self._seconds(job))
            self._answer(job, job.missed(is_retired=is_retired))
        told = _told(error)
        if has_opened:
            self._log.error(
                "l3: the store failed too often and is left alone for %s s; the last failure: %s",
                self._settings.recovery_us / 1e6,
                told,
            )
        elif is_first:
            self._log.warning("l3: a %s failed: %s", job.kind.value, told)

    def _failures_retire(self) -> bool:
        try:
            return bool(self._store.failures_retire)
        except BaseException:
            return False  # it does not know, so nothing is certain

    def _seconds(self, job: Job) -> float:
        return (self._now_us() - job.begun_us) / 1e6

    def _answer(self, job: Job, completion: Completion) -> None:
        """Under the lock: the first answer counts."""
        if self._jobs.pop(job.operation.op_id, None) is not None:
            self._finished.append(completion)

    def _remove(self, namespace: str, removal: _Removal) -> None:
        try:
            removal.is_done = bool(self._store.remove_by_prefix(namespace))
        except BaseException as error:
            self._log.warning("l3: namespace %s was not removed: %s", namespace, _told(error))

    def _close(self) -> None:
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
        try:
            self._store.close()
        except BaseException:
            self._log.exception("l3: the store failed to close")
            if self._is_quarantined:
                # Something may write for ever; so the memory, which this frame holds, stays.
                threading.Event().wait()


def _told(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:
        return type(error).__name__  # it fails even to say what it is
