# SPDX-License-Identifier: MIT
"""A store that could not be opened at the start, and is opened by the first call that can."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence

from attrs import define, field

from tokenspeed_l3.store import CountingStore, IoResult, Store, StoreError


@define(eq=False)
class LateStore:
    """`make` is tried again in each call until it works; meanwhile each call is a StoreError."""

    make: Callable[[], Store]
    _store: Store | None = None
    _is_closed: bool = False
    _lock: threading.Lock = field(factory=threading.Lock)

    @property
    def failures_retire(self) -> bool:
        """Nothing touches a page before there is a store."""
        return self._store is None or self._store.failures_retire

    def batch_exists(self, keys: Sequence[str]) -> Sequence[bool]:
        """Ask the store."""
        return self._opened().batch_exists(keys)

    def batch_get_into(self, keys: Sequence[str], pages: Sequence[memoryview]) -> IoResult:
        """Ask the store."""
        return self._opened().batch_get_into(keys, pages)

    def batch_put_from(self, keys: Sequence[str], pages: Sequence[memoryview]) -> IoResult:
        """Ask the store."""
        return self._opened().batch_put_from(keys, pages)

    def remove_by_prefix(self, prefix: str) -> bool:
        """Ask the store."""
        return self._opened().remove_by_prefix(prefix)

    def close(self) -> None:
        """Close the store, if it was opened."""
        with self._lock:
            self._is_closed = True
        if self._store is not None:
            self._store.close()

    def counts(self) -> Mapping[str, int]:
        """What the store counts, once it is open."""
        store: object = self._store
        return store.counts() if isinstance(store, CountingStore) else {}

    def _opened(self) -> Store:
        with self._lock:
            if self._is_closed:
                raise StoreError("the store was closed before it could be opened")
            if self._store is None:
                self._store = self.make()
            return self._store
