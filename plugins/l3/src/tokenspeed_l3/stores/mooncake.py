# SPDX-License-Identifier: MIT
"""`mooncake://master:50051`: objects in the memory of machines that form a Mooncake store.

Mooncake moves pages itself, over TCP or RDMA, so the host tier's memory is registered with it; the
heads of objects are in memory of our own. It evicts by itself. A transfer that failed may still be
under way: the store does not promise that pages are left alone after an error.

Its transfer engine listens on every interface, whatever it is told: keep it behind a firewall.
"""

from __future__ import annotations

import ctypes
import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from attrs import define, field, frozen
from attrs.validators import ge, in_, matches_re
from mooncake.store import (  # type: ignore[import-not-found,unused-ignore]  # where it loads
    MooncakeDistributedStore,
)

from tokenspeed_l3.calls import RunningCalls
from tokenspeed_l3.frames import head_of, head_size
from tokenspeed_l3.store import IoResult, StoreError
from tokenspeed_l3.store_options import read_options
from tokenspeed_l3.stores.directory import safe_name

# Objects of one call, and the longest head.
CHUNK, HEAD_BYTES = 256, 4096
STORED, MISSING, NOT_READY, OTHER_LENGTH, NO_MEMORY, NOT_MOVED = 0, -704, -703, -600, -200, -800


@frozen(kw_only=True)
class MooncakeOptions:
    """The settings of a Mooncake store: its master and metadata server, how others reach this
    process, and how much memory it lends to the store."""

    location: str = field(validator=matches_re(r"//[^/]+:\d+"))
    metadata: str = "P2PHANDSHAKE"
    hostname: str = field(factory=socket.gethostname)
    segment_size: int = field(default=1 << 30, validator=ge(0))
    buffer_size: int = field(default=64 << 20, validator=ge(0))
    protocol: str = field(default="tcp", validator=in_(("tcp", "rdma")))
    devices: str = ""
    prefix: str = field(default="tokenspeed-l3", validator=matches_re(r"[a-z0-9._-]+"))


class MooncakeStore:
    """Objects in Mooncake."""

    def __init__(self, options: Mapping[str, object], *, buffers: Sequence[memoryview]) -> None:
        given = self._options = read_options(MooncakeOptions, options, store="mooncake")
        self._client: Any = MooncakeDistributedStore()
        code = self._client.setup(
            given.hostname,
            given.metadata,
            given.segment_size,
            given.buffer_size,
            given.protocol,
            given.devices,
            given.location.removeprefix("//"),
        )
        if code:
            raise self._error("it cannot be joined; is its master there?", code)
        self._counts = Counter({"failed": 0, "no_space": 0})
        self._calls = RunningCalls()
        self._heads = _Heads(self._client)
        self._buffers = list(buffers)
        for buffer in self._buffers:
            if code := self._client.register_buffer(address_of(buffer), buffer.nbytes):
                self._client.close()
                raise self._error("the host tier's memory cannot be registered", code)

    @property
    def failures_retire(self) -> bool:
        """A transfer may go on after its call gave up."""
        return False

    def batch_exists(self, keys: Sequence[str]) -> list[bool]:
        """Which keys have an object."""
        with self._calls:
            found: list[int] = self._client.batch_is_exist([self._name(each) for each in keys])
        if any(each < 0 for each in found):
            raise self._error("it does not say what exists", min(found))
        return [each == 1 for each in found]

    def batch_get_into(self, keys: Sequence[str], pages: Sequence[memoryview]) -> IoResult:
        """Have objects written into pages."""
        pairs = list(zip(keys, pages, strict=True))
        success, failed = [False] * len(keys), [False] * len(keys)
        with self._calls:
            for start in range(0, len(pairs), CHUNK):
                for index, found in enumerate(self._get(pairs[start : start + CHUNK]), start):
                    success[index], failed[index] = found is True, found is False
        return IoResult(success, failed)

    def batch_put_from(self, keys: Sequence[str], pages: Sequence[memoryview]) -> IoResult:
        """Have pages taken over into objects."""
        pairs = list(zip(keys, pages, strict=True))
        success: list[bool] = []
        with self._calls:
            for start in range(0, len(pairs), CHUNK):
                success += self._put(pairs[start : start + CHUNK])
        return IoResult(success)

    def remove_by_prefix(self, prefix: str) -> bool:
        """Remove a namespace, also what somebody reads just now."""
        start = f"{self._options.prefix}/{safe_name(prefix.removesuffix('/'))}/"
        with self._calls:
            return int(self._client.remove_by_regex(f"^{re.escape(start)}", True)) >= 0

    def close(self) -> None:
        """Wait for running calls and leave Mooncake."""
        if self._calls.close():
            self._client.close()

    def counts(self) -> Mapping[str, int]:
        """Objects that were damaged, and that Mooncake had no memory for."""
        return dict(self._counts)

    def _get(self, pairs: Sequence[tuple[str, memoryview]]) -> list[bool | None]:
        names = [self._name(key) for key, _ in pairs]
        sizes = [[head_size(key), len(page)] for key, page in pairs]
        with self._heads.lent() as heads:
            parts = [
                [address_of(head), address_of(page)]
                for head, (_, page) in zip(heads, pairs, strict=False)
            ]
            results: list[int] = self._client.batch_get_into_multi_buffers(names, parts, sizes)
            codes = [
                self._explained(code, name, size=sum(size))
                for code, name, size in zip(results, names, sizes, strict=True)
            ]
            found = [
                None if self._is_missing(code) else _is_whole(code, head, pair=pair)
                for code, head, pair in zip(codes, heads, pairs, strict=False)
            ]
        for name, each in zip(names, found, strict=True):
            if each is False:
                self._counts["failed"] += 1
                self._client.remove(name, True)
        return found

    def _explained(self, code: int, name: str, *, size: int) -> int:
        """An object that is shorter than its page is told as a transfer that failed."""
        if code == NOT_MOVED and 0 <= self._client.get_size(name) != size:
            return OTHER_LENGTH
        return code

    def _is_missing(self, code: int) -> bool:
        if code < 0 and code not in {MISSING, NOT_READY, OTHER_LENGTH}:
            raise self._error("a get failed", code)
        return code in {MISSING, NOT_READY}

    def _put(self, pairs: Sequence[tuple[str, memoryview]]) -> list[bool]:
        names = [self._name(key) for key, _ in pairs]
        sizes = [[head_size(key), len(page)] for key, page in pairs]
        with self._heads.lent() as heads:
            for head, (key, page) in zip(heads, pairs, strict=False):
                head[: head_size(key)] = head_of(key, page)
            parts = [
                [address_of(head), address_of(page)]
                for head, (_, page) in zip(heads, pairs, strict=False)
            ]
            codes: list[int] = self._client.batch_put_from_multi_buffers(names, parts, sizes)
        if wrong := [code for code in codes if code not in {STORED, NO_MEMORY}]:
            raise self._error("a put failed", wrong[0])
        self._counts["no_space"] += codes.count(NO_MEMORY)
        return [code == STORED for code in codes]

    def _name(self, key: str) -> str:
        namespace, slash, name = key.partition("/")
        return f"{self._options.prefix}/{safe_name(namespace)}/{safe_name(name) if slash else '~'}"

    def _error(self, what: str, code: int) -> StoreError:
        return StoreError(f"Mooncake at {self._options.location}: {what} (code {code})")


@define(eq=False)
class _Heads:
    """Registered memory for the heads of a call; as many blocks as calls ran at a time."""

    client: Any
    _free: list[list[memoryview]] = field(init=False, factory=list)
    _lost: list[list[memoryview]] = field(init=False, factory=list)
    _lock: threading.Lock = field(init=False, factory=threading.Lock)

    @contextmanager
    def lent(self) -> Iterator[list[memoryview]]:
        """A place for each head of a call. After an error it is not lent again, and kept: a
        transfer may still use it."""
        with self._lock:
            heads = self._free.pop() if self._free else self._make()
        try:
            yield heads
        except BaseException:
            self._lost.append(heads)
            raise
        self._free.append(heads)

    def _make(self) -> list[memoryview]:
        block = memoryview(bytearray(CHUNK * HEAD_BYTES))
        if code := self.client.register_buffer(address_of(block), block.nbytes):
            raise StoreError(f"Mooncake: memory for heads cannot be registered (code {code})")
        return [block[each : each + HEAD_BYTES] for each in range(0, len(block), HEAD_BYTES)]


def address_of(view: memoryview) -> int:
    """Where a view's bytes are."""
    return ctypes.addressof(ctypes.c_char.from_buffer(view)) if len(view) else 0


def _is_whole(code: int, head: memoryview, *, pair: tuple[str, memoryview]) -> bool:
    key, page = pair
    size = head_size(key)
    return code == size + len(page) and head[:size] == head_of(key, page)
