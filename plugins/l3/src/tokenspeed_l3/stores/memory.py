# SPDX-License-Identifier: MIT
"""`memory:NAME`: objects in this process, for trials and tests; gone when the process ends.

Stores of one name share their objects, which outlive those stores: an engine that is closed and
made again finds them. A store without a name is alone.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

from attrs import define, field, frozen
from attrs.validators import gt

from tokenspeed_l3.calls import RunningCalls
from tokenspeed_l3.store import IoResult, StoredObject
from tokenspeed_l3.store_options import read_options


@frozen(kw_only=True)
class MemoryOptions:
    """The settings of a memory store."""

    location: str = ""
    max_size: int = field(default=1 << 30, validator=gt(0))


@frozen
class _Entry:
    data: bytes
    used_at: float


@define(eq=False)
class _Shelf:
    """The objects of one name, the longest unused first."""

    # What a name stands for is a fact of the process, as a path is one of the machine.
    named: ClassVar[dict[str, _Shelf]] = {}

    entries: OrderedDict[str, _Entry] = field(factory=OrderedDict)
    size: int = 0
    lock: threading.Lock = field(factory=threading.Lock)

    @classmethod
    def of(cls, name: str) -> _Shelf:
        """The shelf of a name, a new one where there is no name."""
        return cls.named.setdefault(name, cls()) if name else cls()

    def put(self, key: str, data: bytes, *, limit: int) -> bool:
        """Add an object and make room for it; false if it alone is larger than the limit."""
        if len(data) > limit:
            return False
        with self.lock:
            if key in self.entries:
                return True
            while self.size + len(data) > limit:
                self._drop(next(iter(self.entries)))
            self.entries[key] = _Entry(data, time.monotonic())
            self.size += len(data)
        return True

    def get(self, key: str) -> bytes | None:
        """An object, which is thereby the last used one."""
        with self.lock:
            if (entry := self.entries.pop(key, None)) is None:
                return None
            self.entries[key] = _Entry(entry.data, time.monotonic())
        return entry.data

    def remove(self, key: str) -> bool:
        """Forget an object; whether it was there."""
        with self.lock:
            return key in self.entries and self._drop(key)

    def remove_namespace(self, namespace: str) -> None:
        """Forget all objects of a namespace."""
        with self.lock:
            for key in [each for each in self.entries if each.startswith(f"{namespace}/")]:
                self._drop(key)

    def _drop(self, key: str) -> bool:
        self.size -= len(self.entries.pop(key).data)
        return True


class MemoryStore:
    """Objects in a dictionary, the longest unused ones dropped above `max_size`."""

    def __init__(self, options: Mapping[str, object], *, buffers: Sequence[memoryview]) -> None:
        self._options = read_options(MemoryOptions, options, store="memory")
        self._shelf = _Shelf.of(self._options.location)
        self._calls = RunningCalls()

    @property
    def failures_retire(self) -> bool:
        """Nothing touches a page once a call has returned."""
        return True

    def batch_exists(self, keys: Sequence[str]) -> list[bool]:
        """Which keys have an object."""
        with self._calls:
            return [key in self._shelf.entries for key in keys]

    def batch_get_into(self, keys: Sequence[str], pages: Sequence[memoryview]) -> IoResult:
        """Copy objects into pages."""
        success, failed = [False] * len(keys), [False] * len(keys)
        with self._calls:
            for index, (key, page) in enumerate(zip(keys, pages, strict=True)):
                if (data := self._shelf.get(key)) is None:
                    continue
                if len(data) == page.nbytes:
                    page[:] = data
                    success[index] = True
                else:
                    failed[index] = self._shelf.remove(key)
        return IoResult(success, failed)

    def batch_put_from(self, keys: Sequence[str], pages: Sequence[memoryview]) -> IoResult:
        """Copy pages into objects."""
        pairs, limit = zip(keys, pages, strict=True), self._options.max_size
        with self._calls:
            return IoResult([self._shelf.put(key, bytes(page), limit=limit) for key, page in pairs])

    def remove_by_prefix(self, prefix: str) -> bool:
        """Forget a namespace."""
        with self._calls:
            self._shelf.remove_namespace(prefix.removesuffix("/"))
        return True

    def close(self) -> None:
        """Use the objects no more; they stay for others of the same name."""
        self._calls.close()

    def objects(self) -> Iterator[StoredObject]:
        """All objects."""
        now = time.monotonic()
        with self._calls, self._shelf.lock:
            found = list(self._shelf.entries.items())
        return (StoredObject(key, len(each.data), now - each.used_at) for key, each in found)

    def check(self, key: str) -> str | None:
        """Whether the object is there: memory keeps what it was given."""
        with self._calls:
            if key not in self._shelf.entries:
                raise KeyError(key)
        return None

    def remove(self, key: str) -> bool:
        """Forget one object."""
        with self._calls:
            return self._shelf.remove(key)
