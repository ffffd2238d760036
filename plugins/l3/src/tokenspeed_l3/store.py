# SPDX-License-Identifier: MIT
"""What a store is: objects of bytes by key, shared by ranks and engines, gone only when removed.

A store is made by a factory, `make(options, buffers=...)`, named by an entry point in the group
`tokenspeed.l3.stores` or as `module:Class`; see `addresses.py`. It knows keys and bytes, never
tokens. A key is `{namespace}/{name}`, both made of `[a-z0-9._-]`: equal keys mean equal bytes, so
an object that is there already may be kept. Objects may vanish at any time (a limit, another
engine's flush), which is a miss. An object that is there but is not what was put is *failed*:
it must never be handed out as a success.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, runtime_checkable

from attrs import frozen


class StoreError(Exception):
    """The store could not answer at all: it is down, not allowed, or broken. Counts against its
    health; a miss, a damaged object and a full store do not."""


@frozen
class IoResult:
    """How a batch went, in the order of its keys.

    `success`: the page holds the whole object, or the object is stored. `failed`: the object itself
    is bad; empty means none is. With `is_retired` false something may still touch the pages.
    """

    success: Sequence[bool]
    failed: Sequence[bool] = ()
    is_retired: bool = True


class Store(Protocol):
    """A store. Called from several threads at once; any method may raise StoreError.

    Pages are writable memoryviews of bytes, page `i` exactly as long as object `i` must be. They
    are parts of the `buffers` the factory was given, so that a transport which needs addresses can
    register those once; a view must not be used after the call that got it.
    """

    @property
    def failures_retire(self) -> bool:
        """Whether it is certain, once a call raised, that it touches the pages no more."""
        ...

    def batch_exists(self, keys: Sequence[str]) -> Sequence[bool]:
        """Which keys have an object now. It may be gone, or turn out damaged, when it is read."""
        ...

    def batch_get_into(self, keys: Sequence[str], pages: Sequence[memoryview]) -> IoResult:
        """Write object `i` into page `i`. One of another length is failed. Where `success` is
        false the page's bytes are unspecified."""
        ...

    def batch_put_from(self, keys: Sequence[str], pages: Sequence[memoryview]) -> IoResult:
        """Store page `i` as object `i`: a reader sees all of it or nothing, whatever interrupts."""
        ...

    def remove_by_prefix(self, prefix: str) -> bool:
        """Remove all objects of a namespace, `prefix` being `{namespace}` or `{namespace}/`. True
        only if none of them can be read afterwards."""
        ...

    def close(self) -> None:
        """Wait for running calls and let go of everything; calling it again does nothing."""
        ...


@runtime_checkable
class CountingStore(Protocol):
    """A store that counts what its results do not tell, for metrics."""

    def counts(self) -> Mapping[str, int]:
        """Numbers since the store was made, by name; never waits."""
        ...


@frozen
class StoredObject:
    """An object in a listing: `size` is its page's, `age_s` since it was put or last read, where
    the store knows."""

    key: str
    size: int
    age_s: float | None = None


@runtime_checkable
class BrowsableStore(Protocol):
    """A store whose contents can be listed, for `tokenspeed l3`."""

    def objects(self) -> Iterator[StoredObject]:
        """All objects, whole or damaged, in no order, one at a time; one may come twice while the
        store changes. Those of other programs are left out."""
        ...

    def check(self, key: str) -> str | None:
        """Read the object whole; what is wrong with it, or None. A missing one raises KeyError."""
        ...

    def remove(self, key: str) -> bool:
        """Remove one object; whether it was there."""
        ...
