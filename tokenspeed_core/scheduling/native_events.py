# SPDX-License-Identifier: MIT
"""The wheel's objects that the driver makes, and the queue of those it has yet to give."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tokenspeed_hookspecs import (
    CacheAcknowledgment,
    CacheOperationKind,
    RequestSpec,
    StorageResult,
    StorageTick,
)


class NativeEvents:
    """Makes the wheel's events; `wheel` is the wheel's module."""

    def __init__(self, wheel: Any) -> None:
        self._wheel = wheel
        self._done = {
            CacheOperationKind.SNAPSHOT: wheel.Cache.SnapshotDoneEvent,
            CacheOperationKind.RESTORE: wheel.Cache.RestoreDoneEvent,
            CacheOperationKind.WRITE_BACK: wheel.Cache.WriteBackDoneEvent,
            CacheOperationKind.LOAD_BACK: wheel.Cache.LoadBackDoneEvent,
        }

    def spec(self, spec: RequestSpec) -> Any:
        """A request as the wheel takes it; ValueError for what is no 32-bit token id."""
        native = self._wheel.RequestSpec()
        native.request_id = spec.request_id
        native.max_new_tokens = spec.max_new_tokens
        if spec.max_cached_prefix is not None:
            native.max_cached_prefix_tokens = spec.max_cached_prefix
        try:
            native.tokens = spec.prompt_ids
        except TypeError as cause:
            raise ValueError(
                f"expected 32-bit token ids in the prompt of request {spec.request_id!r}"
            ) from cause
        return native

    def result(self, request_id: str) -> Any:
        """An answer without tokens."""
        return self._named(self._wheel.ForwardEvent.ExtendResult(), request_id)

    def reserve(self, request_id: str, num_tokens: int) -> Any:
        """A decode row goes on, having made so many tokens."""
        event = self._named(self._wheel.ForwardEvent.UpdateReserveNumTokens(), request_id)
        event.reserve_num_tokens_in_next_schedule_event = num_tokens
        return event

    def finish(self, request_id: str) -> Any:
        """The request ended and its pages may be shared."""
        return self._named(self._wheel.ForwardEvent.Finish(), request_id)

    def abort(self, request_id: str) -> Any:
        """The request ended and its pages are free at once."""
        return self._named(self._wheel.ForwardEvent.Abort(), request_id)

    def tick(self, tick: StorageTick) -> Any:
        """The clock and the permissions of a round."""
        pressure = self._wheel.StoragePressure(
            tick.queued_operations, tick.queued_bytes, tick.oldest_operation_us
        )
        return self._wheel.Cache.StorageTick(
            tick.now_us, tick.allow_forward, tick.allow_storage, pressure
        )

    def head(self, tick: StorageTick) -> Iterator[Any]:
        """Everything of a tick, in the order the wheel needs: the clock last."""
        yield from tick.events
        for request_id in tick.detached:
            yield self._wheel.Cache.StorageDetach(request_id)
        for result in tick.results:
            yield self._storage_done(result)
        yield self.tick(tick)

    def _storage_done(self, result: StorageResult) -> Any:
        success = [int(each) for each in result.success]
        failed = [int(each) for each in result.failed] or [0] * len(success)
        return self._wheel.Cache.StorageDone(result.op_id, success, result.is_retired, failed)

    def done(self, acknowledgment: CacheAcknowledgment) -> Any:
        """A cache operation is in place."""
        event = self._done[acknowledgment.kind]()
        event.op_id = acknowledgment.op_id
        return event

    @staticmethod
    def _named(event: Any, request_id: str) -> Any:
        event.request_id = request_id
        return event


class EventQueue:
    """Events for the wheel in the order they were produced; adding one copies it."""

    def __init__(self, wheel: Any) -> None:
        self._new = wheel.ExecutionEvent
        self._bundles: list[Any] = []
        self._open: Any = None

    def add(self, events: Iterable[Any]) -> None:
        """Queue these behind the others."""
        if self._open is None:
            self._open = self._new()
            self._bundles.append(self._open)
        # A loop in C: a steady decode row costs little more than this.
        deque(map(self._open.add_event, events), maxlen=0)

    def add_bundle(self, bundle: Any) -> None:
        """Queue a bundle that is used again, as it is."""
        self._bundles.append(bundle)
        self._open = None

    def bundle(self, events: Iterable[Any]) -> Any:
        """These events as one native object."""
        bundle = self._new()
        deque(map(bundle.add_event, events), maxlen=0)
        return bundle

    def take(self) -> Sequence[Any]:
        """Everything queued, and begin anew."""
        if not self._bundles:
            return ()
        bundles, self._bundles, self._open = self._bundles, [], None
        return bundles
