# SPDX-License-Identifier: MIT
"""The driver over the native scheduler: the one module that imports the wheel.

It promises the wheel what the wheel does not check kindly: one answer per dispatched row, no abort
while a forward still uses the pages, no id twice, no prompt it could never admit. Late rows (of a
request that ended while a forward ran) come back here like all others and are answered empty.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tokenspeed_scheduler as wheel
from attrs import evolve

from tokenspeed_core.errors import ConfigError, EngineError
from tokenspeed_core.scheduling.answering import Answering
from tokenspeed_core.scheduling.backlog import Backlog
from tokenspeed_core.scheduling.batches import (
    pages_to_copy,
    pages_to_zero,
)
from tokenspeed_core.scheduling.configuration import native_configuration
from tokenspeed_core.scheduling.dispatching import Dispatching
from tokenspeed_core.scheduling.endings import Endings
from tokenspeed_core.scheduling.entrance import Entrance
from tokenspeed_core.scheduling.flight import Flight
from tokenspeed_core.scheduling.native_events import EventQueue, NativeEvents
from tokenspeed_core.scheduling.operations import device_order, storage_operations
from tokenspeed_core.scheduling.population import Population, Stage, Tracked
from tokenspeed_core.scheduling.prefixes import RunningPrefixes
from tokenspeed_core.scheduling.submissions import SubmissionRules
from tokenspeed_hookspecs import (
    Batch,
    CacheAcknowledgment,
    CacheCleared,
    CacheOperation,
    CacheOperationKind,
    CommitOutcome,
    Plan,
    RequestSpec,
    SchedulerAbort,
    SchedulerSettings,
    SchedulerSizes,
    StorageTick,
)

_REFUSALS = (RuntimeError, ValueError, TypeError, IndexError)


class NativeScheduler:
    """A SchedulerDriver over `tokenspeed_scheduler`."""

    def __init__(self, settings: SchedulerSettings) -> None:
        # Its log goes to standard output, which belongs to the commands.
        os.environ.setdefault("SPDLOG_LEVEL", "off")
        config = native_configuration(wheel, settings)
        try:
            self._wheel: Any = wheel.Scheduler(config)
            capacity = wheel.CapacityModel(config)
        except _REFUSALS as cause:
            raise ConfigError([f"no scheduler can be built from {settings}: {cause}"]) from cause
        self._settings = settings
        self._groups = [group.group_id for group in config.cache_groups]
        self._records_events = bool(config.enable_kv_cache_events)
        self._has_peer = config.role != wheel.SchedulerConfig.Role.Fused
        # What waits for a peer or a store has to wait where it can be told apart: in the wheel.
        self._has_storage = config.storage_config is not None
        waits_inside = self._has_peer or self._has_storage
        self._backlog = Backlog(None if waits_inside else settings.max_scheduled_tokens)
        self._population = Population()
        self._flight = Flight()
        self._events = NativeEvents(wheel)
        self._queue = EventQueue(wheel)
        self._rules = SubmissionRules(
            self._wheel.max_single_request_tokens(), settings.decode_width
        )
        self._entrance = Entrance(
            rules=self._rules,
            backlog=self._backlog,
            population=self._population,
            events=self._events,
            capacity=capacity,
            num_slots=settings.max_batch_size,
            prefixes=_prefixes(settings),
        )
        self._endings = Endings(
            population=self._population,
            flight=self._flight,
            entrance=self._entrance,
            events=self._events,
        )
        self._restoring: dict[int, Tracked] = {}
        self._answering = Answering(
            flight=self._flight,
            endings=self._endings,
            backlog=self._backlog,
            events=self._events,
            queue=self._queue,
        )
        self._dispatching = Dispatching(
            population=self._population,
            entrance=self._entrance,
            endings=self._endings,
            flight=self._flight,
            queue=self._queue,
            decode_width=settings.decode_width,
        )
        self._active_pages: int | None = None
        self._drained: list[object] = []

    # --- what anybody may ask --------------------------------------------------------------------

    @property
    def native(self) -> object:
        """The wheel's scheduler."""
        return self._wheel

    @property
    def max_request_tokens(self) -> int:
        """The largest prompt plus budget that can ever be admitted."""
        return self._rules.max_request_tokens

    @property
    def sizes(self) -> SchedulerSizes:
        """Counts kept here; active pages are asked for once per change, for that walks tables."""
        count = self._population.count
        retracted = count(Stage.RETRACTED)
        if self._active_pages is None:
            self._active_pages = int(self._wheel.active_lcm_blocks())
        return SchedulerSizes(
            waiting=count(Stage.BACKLOG) + count(Stage.WAITING) + retracted,
            prefilling=count(Stage.PREFILLING),
            decoding=count(Stage.DECODING),
            retracted=retracted,
            active_pages=self._active_pages,
            empty_pages=self._wheel.empty_lcm_blocks(),
            total_pages=self._settings.num_pages - 1,
        )

    @property
    def has_work(self) -> bool:
        """Whether the scheduler knows any request; one that ended counts until it is let go."""
        return len(self._population) > 0

    @property
    def storage_pending(self) -> bool:
        """Whether a storage operation is open, or a request waits for one."""
        return self._has_storage and bool(self._wheel.storage_pending())

    @property
    def storage_counts(self) -> Mapping[str, int]:
        """The wheel's figures of storage; none without it."""
        if not self._has_storage:
            return {}
        stats = self._wheel.storage_stats()
        return {name: int(getattr(stats, name)) for name in dir(stats) if not name.startswith("_")}

    def request_length(self, request_id: str) -> int:
        """Prompt and generated tokens, -1 when unknown."""
        request = self._population.get(request_id)
        if request is not None and request.stage is Stage.BACKLOG:
            return request.num_prompt
        return int(self._wheel.request_token_size(request_id))

    # --- requests in and out ---------------------------------------------------------------------

    def has_room_for(self, request_id: str) -> bool:
        """Whether the id is unknown here, and so to the wheel."""
        return self._population.get(request_id) is None

    def submit(self, specs: Sequence[RequestSpec]) -> None:
        """Queue new requests, all or none; ValueError where the wheel would refuse one."""
        self._entrance.submit(specs)

    def cancel(self, request_id: str) -> bool:
        """End a request that is not running; False where only a commit can end it."""
        request = self._population.get(request_id)
        if request is None or self._flight.names(request_id):
            return False
        if request.stage is Stage.BACKLOG:
            self._entrance.withdraw(request)
            return True
        if request.stage is not Stage.WAITING and request.stage is not Stage.RETRACTED:
            return False
        self._endings.end(request)
        self._queue.add([self._events.abort(request_id)])
        return True

    # --- the plan --------------------------------------------------------------------------------

    def plan(self) -> Plan:
        """What to run next. What is queued goes first: a cancelled request must not begin."""
        self.advance()
        if self._endings.are_suspects_over:
            self._endings.has_suspects = not self.clear_cache()
        if self._backlog.may_move:
            self._hand_over()
        native = _guarded(self._wheel.next_execution_plan)
        self._active_pages = None
        if self._endings.leaving:
            self._endings.forget_answered()
        aborts = tuple([self._dropped(abort) for abort in native.aborts])
        operations = self._operations(native.cache)
        batch = self._dispatching.batch(native.forward)
        zero, copy = pages_to_zero(native), pages_to_copy(native)
        return Plan(
            batch=batch,
            operations=operations,
            zero=zero,
            copy=copy,
            aborts=aborts,
            needs_device=batch is not None
            or bool(zero or copy)
            or _moves_pages(operations)
            or (self._has_peer and self._begin_remote(native)),
            native=native,
            storage=storage_operations(native.cache, self._groups) if self._has_storage else (),
        )

    def _hand_over(self) -> None:
        num_answering = self._endings.num_answering()
        for spec in self._entrance.hand_over(self._wheel, num_answering=num_answering):
            if self._endings.has_suspects:
                spec.max_cached_prefix_tokens = 0
            _guarded(self._wheel.submit_requests, [spec])

    def _dropped(self, abort: Any) -> SchedulerAbort:
        request = self._population.get(abort.request_id)
        if request is not None and request.stage is not Stage.ENDED:
            self._endings.end(request)
        return SchedulerAbort(abort.request_id, abort.reason.name, abort.detail)

    def _operations(self, natives: Sequence[Any]) -> tuple[CacheOperation, ...]:
        if not natives:
            return ()
        operations = device_order(natives, self._groups)
        for operation in operations:
            if operation.request_id is None:
                continue
            request = self._population[operation.request_id]
            if operation.kind is CacheOperationKind.SNAPSHOT:
                self._entrance.leave(request, Stage.RETRACTED)
            else:
                self._restoring[operation.op_id] = request
        return operations

    def _begin_remote(self, native: Any) -> bool:
        remote = native.remote_prefill
        for name in remote.request_ids if remote is not None else ():
            self._entrance.begin(self._population[name], Stage.PREFILLING)
        return remote is not None or native.remote_decode is not None

    # --- answers and other events ----------------------------------------------------------------

    def commit(self, batch: Batch, outcome: CommitOutcome) -> None:
        """Queue one answer per row of the oldest forward; EngineError where one cannot be right."""
        self._answering.commit(batch, outcome)

    def queue_events(self, events: Sequence[object]) -> None:
        """Queue native events behind the answers queued so far."""
        if events:
            self._queue.add(events)
            self._backlog.note_change()

    def advance_head(self, tick: StorageTick | None, done: Sequence[CacheAcknowledgment]) -> None:
        """Give the round's clock and the finished cache operations; neither, no call."""
        head = EventQueue(wheel)
        if tick is not None:
            if self._endings.has_suspects:
                # What a NaN may have left in pages must not reach a store that outlives the cache.
                tick = evolve(tick, allow_storage=False)
            if tick.allow_forward and not tick.allow_storage:
                tick = evolve(tick, detached=(*tick.detached, *self._kept_by_storage()))
            head.add(self._events.head(tick))
        if done:
            head.add([self._events.done(acknowledgment) for acknowledgment in done])
            self._note_done(done)
        self._give(head)

    def _kept_by_storage(self) -> list[str]:
        """Requests that wait for a store: the wheel would keep them until it is allowed again."""
        if not self._has_storage or not self._wheel.storage_stats().waiting_requests:
            return []
        return [each.request_id for each in self._population if each.stage is Stage.WAITING]

    def _note_done(self, done: Sequence[CacheAcknowledgment]) -> None:
        self._backlog.note_change()
        for acknowledgment in done:
            request = self._restoring.pop(acknowledgment.op_id, None)
            if request is not None and request.stage is Stage.RETRACTED:
                # Back on the device and not yet running; the wheel counts it there.
                self._population.move(request, Stage.PREFILLING)

    def advance(self) -> None:
        """Give everything queued, in order; nothing queued, no call."""
        self._give(self._queue)

    def _give(self, queue: EventQueue) -> None:
        for bundle in queue.take():
            self._active_pages = None
            _guarded(self._wheel.advance, bundle)

    def drain_events(self) -> Sequence[object]:
        """The cache events since the last call."""
        if not self._records_events:
            return ()
        drained, self._drained = self._drained, []
        return [*drained, *self._wheel.drain_kv_events()]

    # --- the prefix cache ------------------------------------------------------------------------

    def can_clear_cache(self) -> bool:
        """Whether nothing pins a page of the prefix cache, and nothing that ended is to come."""
        # The wheel publishes the pages of an ended request once its last row is answered.
        return not self._endings.num_answering() and bool(self._wheel.can_clear_cache())

    def clear_cache(self) -> bool:
        """Forget every cached prefix; False while a page is pinned."""
        self._backlog.note_change()
        if not self._records_events:
            return bool(self._wheel.clear_cache())
        self._drained += self._wheel.drain_kv_events()
        is_cleared = bool(self._wheel.clear_cache())
        if self._wheel.drain_kv_events():
            self._drained.append(CacheCleared())
        return is_cleared

    def clear_device_cache(self) -> bool:
        """Forget the prefixes on the device and keep those of the host tier."""
        self._backlog.note_change()
        return bool(self._wheel.clear_l1_cache())


def _prefixes(settings: SchedulerSettings) -> RunningPrefixes | None:
    """None where prefixes are not kept, or where windows make a page's worth uncertain."""
    has_windows = any(group.sliding_window is not None for group in settings.groups)
    return (
        RunningPrefixes(settings.page_size) if settings.prefix_cache and not has_windows else None
    )


def _guarded(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call the wheel; what it refuses is a broken invariant of ours, so an EngineError."""
    try:
        return call(*arguments)
    except _REFUSALS as cause:
        raise EngineError(f"the scheduler refused {call.__name__}: {cause}") from cause


def _moves_pages(operations: Sequence[CacheOperation]) -> bool:
    return any(operation.kind is not CacheOperationKind.OTHER for operation in operations)
