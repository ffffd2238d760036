# SPDX-License-Identifier: MIT
"""The directory of a file store: what it is taken for, what lies in it, and when it goes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tokenspeed_l3.frames import head_of
from tokenspeed_l3.store import StoreError
from tokenspeed_l3.store_contract import blank, get, names, page_of, put
from tokenspeed_l3.stores.directory import PRIVATE, Directory
from tokenspeed_l3.stores.file import FileStore

ROOT, NOBODY = 0, 65534


def open_store(root: Path, **options: object) -> FileStore:
    """A store of a directory that may be filled to the last byte."""
    given = {"location": str(root), "min_free": 0, "sync": False} | options
    return FileStore(given, buffers=())


def test_a_directory_of_others_is_refused(tmp_path: Path) -> None:
    """A directory in which something else is, is not taken for a store."""
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(StoreError, match=r"expected an empty directory .* 'thesis.tex'"):
        open_store(tmp_path)


def test_another_format_is_refused(tmp_path: Path) -> None:
    """A directory that another version made is left alone."""
    open_store(tmp_path).close()
    (tmp_path / PRIVATE / "format").write_bytes(b"tokenspeed l3 file store 2\n")
    with pytest.raises(StoreError, match="another version"):
        open_store(tmp_path)


def test_a_path_that_is_a_file_is_told(tmp_path: Path) -> None:
    """A location that is no directory is an error that names it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=str(tmp_path / "file")):
        open_store(tmp_path / "file")


def test_nothing_is_written_outside(tmp_path: Path) -> None:
    """Whatever a key says, its object lies below the root."""
    store = open_store(tmp_path / "a" / "store")
    hostile = [
        "../../x",
        "/etc/x",
        "a/../../../x",
        "..",
        ".",
        "../..",
        f"{PRIVATE}/format",
        "\0/\0",
    ]
    assert all(put(store, hostile, size=9).success)
    assert store.remove_by_prefix("..")
    assert store.remove_by_prefix(f"{PRIVATE}/")
    store.close()
    assert [each.name for each in tmp_path.iterdir()] == ["a"]
    assert [each.name for each in (tmp_path / "a").iterdir()] == ["store"]
    open_store(tmp_path / "a" / "store").close()


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    """A link at an object's name is a damaged object, whatever it leads to."""
    store, (key,) = open_store(tmp_path / "store"), names("links", 1)
    page = page_of(key, 10)
    aim = tmp_path / "aim"
    aim.write_bytes(head_of(key, page) + page)
    put(store, [key], size=10)
    path = Path(Directory(str(tmp_path / "store")).path(key))
    path.unlink()
    path.symlink_to(aim)
    assert get(store, key, size=10) == (None, True)
    assert aim.exists()
    store.close()


def test_a_directory_that_goes_is_an_error_until_it_returns(tmp_path: Path) -> None:
    """With its directory away a put raises and nothing is made; with it back all is as before."""
    root, aside = tmp_path / "store", tmp_path / "aside"
    store, keys = open_store(root), names("away", 4)
    put(store, keys[:2], size=100)
    root.rename(aside)
    with pytest.raises(StoreError, match="unmounted"):
        put(store, keys, size=100)
    assert not any(store.batch_exists(keys))
    assert not any(store.batch_get_into(keys, [blank(100) for _ in keys]).success)
    assert not root.exists()
    aside.rename(root)
    assert all(put(store, keys, size=100).success)
    assert all(store.batch_get_into(keys, [blank(100) for _ in keys]).success)
    store.close()


def test_permission_lost_is_an_error_until_it_returns(tmp_path: Path) -> None:
    """Without permission every call raises; with it back all is as before."""
    store, keys = open_store(tmp_path / "store"), names("denied", 4)
    put(store, keys[:2], size=100)
    calls: list[Callable[[], object]] = [
        lambda: put(store, keys, size=100),
        lambda: get(store, keys[0], size=100),
        lambda: store.batch_exists(keys),
        lambda: store.remove_by_prefix("denied/"),
    ]
    user = os.geteuid()
    tmp_path.chmod(0)
    try:
        if user == ROOT:
            os.seteuid(NOBODY)
        for call in calls:
            with pytest.raises(StoreError, match="Permission denied"):
                call()
    finally:
        os.seteuid(user)
        tmp_path.chmod(0o700)
    assert list(store.batch_exists(keys)) == [True, True, False, False]
    assert all(put(store, keys, size=100).success)
    store.close()
