# SPDX-License-Identifier: MIT
"""How a store is named: by an entry point or a class of one's own, with options."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest
from attrs import define

from tokenspeed_l3.addresses import known_stores, open_store, parse_address
from tokenspeed_l3.store import Store, StoreError
from tokenspeed_l3.store_contract import StoreContract, get, names, put
from tokenspeed_l3.store_options import read_options
from tokenspeed_l3.stores.file import FileOptions
from tokenspeed_l3.stores.memory import MemoryStore


@define
class MemoryBench:
    """Memory of one name."""

    name: str

    def open(self) -> Store:
        """A store of that memory."""
        return open_store(parse_address(f"memory:{self.name}"))

    def change(self, key: str, change: Callable[[bytes], bytes]) -> None:
        raise NotImplementedError

    def swap(self, first: str, second: str) -> None:
        raise NotImplementedError


class TestMemory(StoreContract):
    """The memory store does what every store must."""

    finds_damage = False

    @pytest.fixture
    def bench(self, request: pytest.FixtureRequest) -> MemoryBench:
        """Memory that no other test names."""
        return MemoryBench(request.node.nodeid.replace("?", "-"))


def test_memory_has_a_limit() -> None:
    """Above its limit memory drops what was unused for longest, and takes nothing larger."""
    store, keys = MemoryStore({"max_size": 250}, buffers=()), names("limit", 3)
    put(store, keys[:2], size=100)
    assert get(store, keys[0], size=100)[0]
    put(store, keys[2:], size=100)
    assert list(store.batch_exists(keys)) == [True, False, True]
    assert not any(put(store, names("large", 1), size=300).success)


class Theirs(MemoryStore):
    """A store of somebody else."""

    def __init__(self, options: Mapping[str, object], *, buffers: Sequence[memoryview]) -> None:
        super().__init__({}, buffers=buffers)
        self.options, self.buffers = options, buffers


def test_a_class_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """`module:Class:rest?more` names any importable class, which gets the options and buffers."""
    module = types.ModuleType("their_stores.mine")
    module.Theirs = Theirs  # type: ignore[attr-defined]  # made here
    monkeypatch.setitem(sys.modules, "their_stores", types.ModuleType("their_stores"))
    monkeypatch.setitem(sys.modules, "their_stores.mine", module)
    address = parse_address("their_stores.mine:Theirs:there?speed=fast", {"more": 1})
    memory = memoryview(bytearray(4))
    store = open_store(address, buffers=[memory])
    assert isinstance(store, Theirs)
    assert store.options == {"location": "there", "speed": "fast", "more": 1}
    assert store.buffers == [memory]
    with pytest.raises(ValueError, match="has no store 'Missing'"):
        open_store(parse_address("their_stores.mine:Missing"))
    with pytest.raises(StoreError, match="needs the package no_such_module"):
        open_store(parse_address("no_such_module:Store"))


def test_a_table_goes_before_the_text() -> None:
    """An option of the table counts, not the one of the same name in the address."""
    address = parse_address("file:/a?max_size=1GiB&sync=false", {"max_size": "2GiB"})
    options = read_options(FileOptions, address.options, store="file")
    assert (options.location, options.max_size, options.sync) == ("/a", 2 << 30, False)


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("", "such as file:/var/cache/tokenspeed"),
        ("nowhere", "stores installed: file, memory"),
        ("their-stores:Mine", "module:Class"),
        ("memory:x?max_size", "bad query field"),
    ],
)
def test_what_is_no_address(address: str, told: str) -> None:
    """What names no store raises ValueError and shows one that does."""
    with pytest.raises(ValueError, match=told):
        parse_address(address)


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("memory:?max_size=10Gi", "option max_size: expected a number"),
        ("memory:?max_size=0", "'max_size' must be > 0"),
        ("memory:?size=1", "no option 'size'; it has location, max_size"),
        ("file:", "option location is missing"),
        ("file:/x?sync=perhaps", "option sync: expected true or false"),
        ("redis://h?timeout=fast", "option timeout: expected seconds"),
        ("redis://h/name", "db being a number"),
    ],
)
def test_a_wrong_option_is_told(address: str, told: str) -> None:
    """A wrong option raises ValueError and is named."""
    with pytest.raises(ValueError, match=told):
        open_store(parse_address(address))


def test_every_store_is_installed(tmp_path: Path) -> None:
    """The stores of this package are found by name."""
    assert {"file", "memory", "mooncake", "redis", "s3"} <= set(known_stores())
    open_store(parse_address(f"file:{tmp_path}/store")).close()
