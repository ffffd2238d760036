# SPDX-License-Identifier: MIT
"""A file store's directory as others leave it: what is listed, counted, made anew and deleted."""

from __future__ import annotations

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from attrs import define, field

from tokenspeed_l3.command import run
from tokenspeed_l3.store import StoreError
from tokenspeed_l3.store_contract import blank, get, names, page_of, put
from tokenspeed_l3.stores.directory import (
    PRIVATE,
    Directory,
    Tally,
    Workspace,
    space_of,
    sweep_drafts,
)
from tokenspeed_l3.stores.drafts import Draft
from tokenspeed_l3.stores.file import FileStore
from tokenspeed_l3.stores.janitor import Janitor

WAIT_S = 60.0
SIZE = 100


def open_store(root: Path, **options: object) -> FileStore:
    """A store of a directory that may be filled to the last byte."""
    given = {"location": str(root), "min_free": 0, "sync": False} | options
    return FileStore(given, buffers=())


def path_of(root: Path, key: str) -> Path:
    """Where an object is."""
    return Path(Directory(str(root)).path(key))


def wait_for(condition: Callable[[], object]) -> None:
    """Wait until it holds."""
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.01)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:9],
        lambda data: b"X" + data[1:],
        lambda data: data[:20] + b"\xff" + data[21:],
        lambda data: data[:30] + b"X" + data[31:],
    ],
)
def test_an_object_whose_head_is_damaged_is_listed_and_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[bytes], bytes]
) -> None:
    """Its name says which it is, whatever became of its length, its mark or the key in it."""
    store, keys = open_store(tmp_path), names("head", 3)
    put(store, keys, size=SIZE)
    path = path_of(tmp_path, keys[1])
    path.write_bytes(damage(path.read_bytes()))
    assert {each.key for each in store.objects()} == set(keys)
    assert run(["verify", "--store", f"file:{tmp_path}", "--remove"]) == 1
    assert capsys.readouterr().out.startswith(keys[1])
    assert {each.key for each in store.objects()} == {keys[0], keys[2]}
    store.close()


def test_what_is_no_object_is_not_listed(tmp_path: Path) -> None:
    """Files of other programs, files where a directory belongs, and objects at another's place."""
    store, keys = open_store(tmp_path), [*names("listed", 2), "Odd Key/x", "Other Key/y"]
    put(store, keys, size=SIZE)
    place = path_of(tmp_path, keys[0]).parent
    (place / ".nfs0001").write_bytes(b"x")
    (place.parent / "stray").write_bytes(b"x")
    (tmp_path / "stray").write_bytes(b"x")
    shutil.copy(path_of(tmp_path, keys[1]), place / "elsewhere")
    shutil.copy(path_of(tmp_path, keys[2]), path_of(tmp_path, keys[3]))
    assert sorted(each.key for each in store.objects()) == sorted(keys[:3])
    store.close()


def test_directories_may_vanish_while_one_looks(tmp_path: Path) -> None:
    """The rest is listed."""
    store, keys = open_store(tmp_path), names("gone", 3)
    put(store, keys, size=SIZE)
    for place in tmp_path.glob("gone/*"):
        for number in range(50):
            (place / f"beside{number}").mkdir()
    listing = store.objects()
    next(listing)
    assert store.remove_by_prefix("gone/")
    assert list(listing) == []
    store.close()


def test_an_object_that_cannot_be_read_is_a_damaged_one(tmp_path: Path) -> None:
    """A check says so and goes on, as with a bad block of the disk."""
    store, keys = open_store(tmp_path), names("unread", 2)
    put(store, keys, size=SIZE)
    path = path_of(tmp_path, keys[0])
    path.rename(tmp_path.parent / "aim")
    path.symlink_to(tmp_path.parent / "aim")
    assert "cannot be read" in (store.check(keys[0]) or "")
    assert store.check(keys[1]) is None
    store.close()


def test_what_a_link_leads_to_is_not_deleted(tmp_path: Path) -> None:
    """A directory elsewhere is not the store's, however full that is, and whatever is removed."""
    store, outside = open_store(tmp_path / "store", max_size="1MiB"), tmp_path / "outside"
    (outside / "ab" / "cd").mkdir(parents=True)
    thesis = outside / "ab" / "cd" / "thesis.tex"
    thesis.write_bytes(bytes(500_000))
    os.utime(thesis, (1, 1))
    (tmp_path / "store" / "linked").symlink_to(outside)
    for key in names("room", 40):
        put(store, [key], size=30_000)
    wait_for(lambda: store.counts()["evicted"])
    assert store.remove_by_prefix("linked/")
    wait_for(lambda: not list((tmp_path / "store" / PRIVATE / "removed").iterdir()))
    store.close()
    assert thesis.exists()


def test_a_directory_that_was_made_anew_is_written_to_again(tmp_path: Path) -> None:
    """An operator deletes it under two engines, and one of them is started again."""
    root, keys = tmp_path / "store", names("anew", 4)
    store = open_store(root)
    assert all(put(store, keys, size=SIZE).success)
    while root.exists():  # the store's own cleaning may come between
        shutil.rmtree(root, ignore_errors=True)
    with pytest.raises(StoreError, match="deleted or unmounted"):
        put(store, keys, size=SIZE)
    open_store(root).close()
    assert all(put(store, keys, size=SIZE).success)
    assert all(store.batch_get_into(keys, [blank(SIZE) for _ in keys]).success)
    store.close()
    assert not list((root / PRIVATE / "tmp").iterdir())


def test_a_store_that_cannot_be_opened_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be tried again for days, as on a full disk."""
    open_store(tmp_path).close()
    make = os.makedirs

    def full(path: str, *given: object, **more: object) -> None:
        if Path(path).parent.name == "tmp":
            raise OSError(errno.ENOSPC, "full")
        make(path, *given, **more)  # type: ignore[arg-type]  # handed on

    monkeypatch.setattr(os, "makedirs", full)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(StoreError, match="full"):
            open_store(tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before
    assert not list((tmp_path / PRIVATE / "tmp").iterdir())


def test_a_directory_that_returns_is_held_again(tmp_path: Path) -> None:
    """Who tried to write while it was away still has its folder to itself."""
    root, aside, keys = tmp_path / "store", tmp_path / "aside", names("held", 2)
    store = open_store(root)
    put(store, keys[:1], size=SIZE)
    root.rename(aside)
    with pytest.raises(StoreError, match="unmounted"):
        put(store, keys, size=SIZE)
    aside.rename(root)
    assert all(put(store, keys, size=SIZE).success)
    sweep_drafts(Directory(str(root)))
    assert any(each.is_dir() for each in (root / PRIVATE / "tmp").iterdir())
    store.close()


def test_a_put_that_breaks_off_counts_what_it_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the limit would be passed by what is there and not counted."""
    # A count beside the puts may count one of them twice, until the next count.
    monkeypatch.setattr(Janitor, "begin", lambda janitor: None)
    store, keys = open_store(tmp_path), names("breaks", 6)
    put(store, names("first", 1), size=SIZE)
    tally, publish = Tally(f"{tmp_path}/{PRIVATE}/tally"), Draft.publish
    assert tally.add(0) == space_of(SIZE)

    def breaks_off(draft: Draft, directory: Directory) -> None:
        if draft.key == keys[3]:
            raise OSError(errno.EIO, "a bad block")
        publish(draft, directory)

    monkeypatch.setattr(Draft, "publish", breaks_off)
    with pytest.raises(StoreError, match="a bad block"):
        put(store, keys, size=SIZE)
    assert list(store.batch_exists(keys)) == [True] * 3 + [False] * 3
    assert tally.add(0) == 4 * space_of(SIZE)
    store.close()


@define(eq=False, slots=False)
class _SoonSet(threading.Event):
    """An event that is set once it was asked about so often."""

    asked: int = field(default=0)

    def __attrs_pre_init__(self) -> None:
        super().__init__()

    def is_set(self) -> bool:
        self.asked += 1
        return self.asked > 5


def test_the_end_does_not_wait_for_a_namespace_to_be_deleted(tmp_path: Path) -> None:
    """A large one takes minutes; the next one to clean goes on with it."""
    store = open_store(tmp_path)
    put(store, names("large", 40), size=10)
    store.close()
    directory = Directory(str(tmp_path))
    moved = Path(directory.removed) / "moved"
    (tmp_path / "large").rename(moved)
    tally = Tally(f"{tmp_path}/{PRIVATE}/tally")
    janitor = Janitor(directory, tally=tally, max_size=1, min_free=0)
    janitor._stopping = _SoonSet()
    janitor._delete_removed()
    left = [each for each in moved.rglob("*") if each.is_file()]
    assert 30 < len(left) < 40
    janitor._stopping = threading.Event()
    janitor._delete_removed()
    assert not moved.exists()


def test_a_workspace_is_its_own_until_it_is_closed(tmp_path: Path) -> None:
    """What is being written is not deleted by whoever cleans, in this process or another."""
    store = open_store(tmp_path)
    workspace = Workspace(Directory(str(tmp_path)))
    workspace.open()
    draft = Path(workspace.draft())
    draft.write_bytes(page_of("draft", SIZE))
    put(store, names("cleans", 1), size=SIZE)
    abandoned = tmp_path / PRIVATE / "tmp" / "abandoned"
    abandoned.mkdir()
    (tmp_path / PRIVATE / "tmp" / "abandoned.lock").touch()
    store.remove_by_prefix("other/")
    wait_for(lambda: not abandoned.exists())
    assert draft.exists()
    workspace.close()
    assert not draft.parent.exists()
    assert get(store, names("cleans", 1)[0], size=SIZE)[0]
    store.close()
