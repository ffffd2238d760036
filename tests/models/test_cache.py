# SPDX-License-Identifier: MIT
"""A cache entry is whole or not there, whatever happens while it is built."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tokenspeed_core.models.cache import build_once, cache_root
from tokenspeed_core.models.errors import ModelError
from tokenspeed_core.models.progress import Silent


class Heard:
    """Keeps the labels of the steps it hears of."""

    def __init__(self) -> None:
        self.labels: list[str] = []
        self.waiting = threading.Event()

    def start(self, label: str, total_bytes: int | None = None) -> None:
        """Keep the label."""
        self.labels.append(label)
        self.waiting.set()

    def advance(self, num_bytes: int) -> None:
        """Ignore the bytes."""

    def finish(self) -> None:
        """Ignore the end."""


def write(folder: Path) -> None:
    """Build an entry of one file."""
    (folder / "file").write_text("whole")


def failing(error: BaseException) -> Callable[[Path], None]:
    """Make a build that writes half of its entry and then fails."""

    def build(folder: Path) -> None:
        (folder / "file").write_text("half")
        raise error

    return build


def test_entry_is_built_once(tmp_path: Path) -> None:
    """The second time nothing is built."""
    entry = tmp_path / "models" / "x"
    build_once(entry, write, progress=Silent())
    build_once(entry, failing(AssertionError()), progress=Silent())
    assert (entry / "file").read_text() == "whole"


@pytest.mark.parametrize("error", [ModelError("bad"), KeyboardInterrupt(), MemoryError()])
def test_nothing_stays_of_a_failed_build(tmp_path: Path, error: BaseException) -> None:
    """An error or an interruption half way leaves no entry and no unfinished folder."""
    entry = tmp_path / "models" / "x"
    with pytest.raises(type(error)):
        build_once(entry, failing(error), progress=Silent())
    assert list(entry.parent.iterdir()) == []
    build_once(entry, write, progress=Silent())


def test_leftovers_of_a_killed_process_are_cleared(tmp_path: Path) -> None:
    """What a killed process left does not get into the entry, and goes."""
    entry = tmp_path / "models" / "x"
    (entry.parent / ".x.unfinished").mkdir(parents=True)
    (entry.parent / ".x.unfinished" / "stale").touch()
    build_once(entry, write, progress=Silent())
    assert [path.name for path in entry.parent.rglob("*")] == ["x", "file"]


def test_second_builder_waits_and_takes_the_first_ones_entry(tmp_path: Path) -> None:
    """While one builds, another waits, says so, and then builds nothing."""
    entry, heard, started = tmp_path / "models" / "x", Heard(), threading.Event()

    def slow(folder: Path) -> None:
        started.set()
        assert heard.waiting.wait(timeout=30)
        write(folder)

    first = threading.Thread(target=build_once, args=(entry, slow), kwargs={"progress": Silent()})
    first.start()
    assert started.wait(timeout=30)
    build_once(entry, failing(AssertionError()), progress=heard)
    first.join()
    assert heard.labels == ["Waiting for another process to build x"]
    assert (entry / "file").read_text() == "whole"


def test_unwritable_cache_is_one_error(tmp_path: Path) -> None:
    """A cache that cannot be written is named, with the way out."""
    (tmp_path / "models").touch()
    with pytest.raises(ModelError, match="set TOKENSPEED_CACHE"):
        build_once(tmp_path / "models" / "x", write, progress=Silent())


def test_root_follows_the_environment() -> None:
    """TOKENSPEED_CACHE goes before the user's cache folder."""
    assert cache_root({"TOKENSPEED_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_root({"XDG_CACHE_HOME": "/b"}) == Path("/b/tokenspeed")
    assert cache_root({}) == Path.home() / ".cache" / "tokenspeed"
