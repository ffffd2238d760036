# SPDX-License-Identifier: MIT
"""The file store: the contract, and what happens to directories."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import define

from tokenspeed_l3.store_contract import StoreContract
from tokenspeed_l3.stores.directory import Directory
from tokenspeed_l3.stores.file import FileStore


@define
class FileBench:
    """A directory."""

    root: Path

    def open(self, **options: object) -> FileStore:
        """A store of it."""
        given = {"location": str(self.root), "min_free": 0, "sync": False} | options
        return FileStore(given, buffers=())

    def path(self, key: str) -> Path:
        """Where an object is."""
        return Path(Directory(str(self.root)).path(key))

    def change(self, key: str, change: Callable[[bytes], bytes]) -> None:
        """Write the file anew."""
        self.path(key).write_bytes(change(self.path(key).read_bytes()))

    def swap(self, first: str, second: str) -> None:
        """Rename both files."""
        one, other = self.path(first), self.path(second)
        aside = one.rename(one.with_name("aside"))
        other.rename(one)
        aside.rename(other)


@pytest.fixture
def bench(tmp_path: Path) -> FileBench:
    """An empty directory."""
    return FileBench(tmp_path / "store")


class TestContract(StoreContract):
    """What every store must do."""

    damages = 50
