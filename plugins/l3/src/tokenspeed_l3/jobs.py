# SPDX-License-Identifier: MIT
"""One operation on its way through the executor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum

from attrs import define, frozen

from tokenspeed_hookspecs import HostPages, StorageOperation, StorageOperationKind
from tokenspeed_l3.keys import Part
from tokenspeed_l3.report import Completion
from tokenspeed_l3.store import IoResult, Store

QUERY, GET, PUT = StorageOperationKind.QUERY, StorageOperationKind.GET, StorageOperationKind.PUT


class JobState(Enum):
    """QUEUED and RUNNING jobs answer once; a DROPPED one has answered, whatever its call does."""

    QUEUED = "queued"
    RUNNING = "running"
    DROPPED = "dropped"


class WrongAnswerError(Exception):
    """A store's answer is not one: it counts as a failure of the store. That the pages are still
    in use is believed even so."""

    def __init__(self, text: str, *, is_retired: bool) -> None:
        super().__init__(text)
        self.is_retired = is_retired


@frozen
class Site:
    """Where a rank's pages are and what their objects are called. Names and pages are made by the
    worker: the loop does no work a page."""

    parts: Mapping[str, Part]
    host: HostPages


@define(eq=False)
class Job:
    """An operation, and the namespace it keeps whatever becomes of the engine's."""

    operation: StorageOperation
    namespace: str
    site: Site
    queued_us: int
    begun_us: int = 0
    state: JobState = JobState.QUEUED

    @property
    def kind(self) -> StorageOperationKind:
        """Query, get or put."""
        return self.operation.kind

    @property
    def asked(self) -> Sequence[int]:
        """Which of its keys concern the store: all, but of a put only the rank's own."""
        keys, parts = self.operation.keys, self.site.parts
        if self.kind is not PUT:
            return range(len(keys))
        return [at for at, key in enumerate(keys) if parts[key.group].is_owner]

    @property
    def num_bytes(self) -> int:
        """What it moves if all goes well."""
        if self.kind is QUERY:
            return 0
        parts = self.site.parts
        return sum(parts[key.group].page_bytes for key in self.operation.keys)

    def run(self, store: Store) -> Completion:
        """Ask the store. StoreError, WrongAnswerError, or whatever else a store raises."""
        asked = self.asked
        keys = [self.operation.keys[at] for at in asked]
        names = [self.site.parts[key.group].name(self.namespace, key) for key in keys]
        if self.kind is QUERY:
            return self._completed(asked, IoResult(store.batch_exists(names)))
        pages = [
            self.site.host.page(key.group, self.operation.pages[at])
            for at, key in zip(asked, keys, strict=True)
        ]
        if self.kind is GET:
            return self._completed(asked, store.batch_get_into(names, pages))
        return self._completed(asked, store.batch_put_from(names, pages))

    def missed(self, *, is_retired: bool = True) -> Completion:
        """The answer when nothing came of it."""
        nothing = bytes(len(self.operation.keys))
        return Completion(self.operation.op_id, nothing, nothing, is_retired)

    def nothing_to_ask(self) -> Completion | None:
        """The answer of a put that is other ranks' affair: as far as this one goes, it is done."""
        if self.asked:
            return None
        size = len(self.operation.keys)
        return Completion(self.operation.op_id, b"\1" * size, bytes(size))

    def _completed(self, asked: Sequence[int], result: IoResult) -> Completion:
        if len(result.success) != len(asked) or len(result.failed) not in (0, len(asked)):
            raise WrongAnswerError(
                f"asked for {len(asked)} keys, it answered for {len(result.success)} and told "
                f"{len(result.failed)} failures",
                is_retired=bool(result.is_retired),
            )
        # The scheduler takes failures of gets only; what was not put is not there, and no more.
        bad = [bool(each) for each in result.failed] or [False] * len(asked)
        size = len(self.operation.keys)
        failed, success = bytearray(size), bytearray(b"\1" * size)
        for at, is_good, is_bad in zip(asked, result.success, bad, strict=True):
            success[at] = bool(is_good) and not is_bad
            failed[at] = is_bad and self.kind is GET
        is_retired = bool(result.is_retired)
        return Completion(self.operation.op_id, bytes(success), bytes(failed), is_retired)


def is_let_go(error: BaseException) -> bool:
    """Whether nothing in a call's error says that its pages are still in use."""
    return not isinstance(error, WrongAnswerError) or error.is_retired
