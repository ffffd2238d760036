# SPDX-License-Identifier: MIT
"""`tokenspeed l3` on stores as engines leave them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokenspeed_l3.command import run
from tokenspeed_l3.contents import age_text, read_age, size_text, to_remove
from tokenspeed_l3.store import StoredObject, StoreError
from tokenspeed_l3.store_contract import names, put
from tokenspeed_l3.stores.directory import Directory
from tokenspeed_l3.stores.file import FileStore

SIZE = 1000


@pytest.fixture
def place(tmp_path: Path) -> str:
    """A store with three objects of an old namespace and two of a new one."""
    root = tmp_path / "store"
    store = FileStore({"location": str(root), "min_free": 0, "sync": False}, buffers=())
    put(store, names("old", 3) + names("new", 2), size=SIZE)
    store.close()
    for hours, key in enumerate(names("old", 3), start=1):
        then = time.time() - 3600 * hours - 10
        os.utime(Directory(str(root)).path(key), (then, then))
    return f"file:{root}"


def lines(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    """What was printed, as JSON."""
    return [json.loads(each) for each in capsys.readouterr().out.splitlines()]


def damage(place: str, key: str) -> None:
    """Change a bit of an object's last byte."""
    path = Path(Directory(place.removeprefix("file:")).path(key))
    path.write_bytes(path.read_bytes()[:-1] + b"!")


def test_ls_lists_objects(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each object has a line with its key and size; a namespace and a limit narrow them."""
    assert run(["ls", "--store", place, "--json"]) == 0
    found = lines(capsys)
    assert {each["key"] for each in found} == {*names("old", 3), *names("new", 2)}
    assert {each["size"] for each in found} == {SIZE}
    assert run(["ls", "--store", place, "--json", "--namespace", "new"]) == 0
    assert {each["key"] for each in lines(capsys)} == set(names("new", 2))
    assert run(["ls", "--store", place, "--limit", "2"]) == 0
    told = capsys.readouterr()
    assert "1000 B" in told.out
    assert "--limit 0 shows all" in told.err


def test_a_limit_is_no_negative_number(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What argparse refuses ends with code 2 and says what was expected."""
    with pytest.raises(SystemExit, match="2"):
        run(["ls", "--store", place, "--limit", "-2"])
    assert "expected a number from 0, got '-2'" in capsys.readouterr().err


def test_names_are_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """However narrow the terminal, a name is one word on a line, to be copied or piped."""
    key = f"{'n' * 80}/{'k' * 90}"
    root = str(tmp_path / "store")
    store = FileStore({"location": root, "min_free": 0, "sync": False}, buffers=())
    put(store, [key], size=SIZE)
    store.close()
    for command, name in (("ls", key), ("stats", "n" * 80)):
        assert run([command, "--store", f"file:{root}"]) == 0
        assert name in capsys.readouterr().out.split()


def test_stats_sums_up(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each namespace has a line, the largest first, and there is a sum."""
    assert run(["stats", "--store", place, "--json"]) == 0
    (found,) = lines(capsys)
    assert (found["objects"], found["bytes"]) == (5, 5 * SIZE)
    namespaces = found["namespaces"]
    assert isinstance(namespaces, list)
    assert [(each["namespace"], each["objects"]) for each in namespaces] == [("old", 3), ("new", 2)]
    assert run(["stats", "--store", place]) == 0
    assert "5 objects, 4.883 KiB" in capsys.readouterr().out


def test_verify_names_the_damaged(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged object is named with what is wrong, and removed when asked."""
    assert run(["verify", "--store", place]) == 0
    assert "5 objects read, 0 damaged" in capsys.readouterr().out
    key = names("old", 3)[1]
    damage(place, key)
    assert run(["verify", "--store", place, "--json"]) == 1
    problem, end = lines(capsys)
    assert problem["key"] == key
    assert problem["problem"] == "its checksum does not fit its bytes"
    assert end == {"checked": 5, "damaged": 1}
    assert run(["verify", "--store", place, "--remove"]) == 1
    assert f"{key}: its checksum does not fit its bytes; removed" in capsys.readouterr().out
    assert run(["verify", "--store", place]) == 0


def test_what_cannot_be_removed_is_told_and_the_rest_is_removed(
    place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One damaged object that stays is no reason to leave the others."""
    root, remove = place.removeprefix("file:"), FileStore.remove
    first, *_, last = keys = sorted(names("old", 3))
    for key in (first, last):
        Path(Directory(root).path(key)).write_bytes(b"x")

    def stays(store: FileStore, key: str) -> bool:
        if key == first:
            raise StoreError("it is a directory")
        return remove(store, key)

    monkeypatch.setattr(FileStore, "remove", stays)
    assert run(["verify", "--store", place, "--remove"]) == 1
    told = capsys.readouterr().out
    assert "; not removed: it is a directory\n" in told
    assert told.endswith("5 objects read, 2 damaged\n")
    assert run(["ls", "--store", place, "--json"]) == 0
    assert {each["key"] for each in lines(capsys)} >= {*keys} - {last}


def test_names_are_no_markup(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What a damaged object says of itself is shown as it is."""
    root = place.removeprefix("file:")
    store = FileStore({"location": root, "min_free": 0, "sync": False}, buffers=())
    put(store, ["[red]/[/x]"], size=SIZE)
    store.close()
    place_of = Directory(root).path
    Path(place_of("[red]/[/x]")).rename(place_of(names("old", 1)[0]))
    assert run(["verify", "--store", place]) == 1
    assert "the object of another key, [red]/[/x]\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "left"),
    [
        (["--older-than", "90m"], [*names("old", 1), *names("new", 2)]),
        (["--max-size", "3KB"], [*names("old", 1), *names("new", 2)]),
        (["--namespace", "old"], names("new", 2)),
        (["--namespace", "old", "--older-than", "150m"], [*names("old", 2), *names("new", 2)]),
        (["--older-than", "1s", "--dry-run"], [*names("old", 3), *names("new", 2)]),
        (["--max-size", "1TiB"], [*names("old", 3), *names("new", 2)]),
    ],
)
def test_prune_removes(
    place: str, capsys: pytest.CaptureFixture[str], flags: list[str], left: list[str]
) -> None:
    """The old, the too many and those of a namespace go, the longest unused first."""
    assert run(["prune", "--store", place, *flags]) == 0
    capsys.readouterr()
    run(["ls", "--store", place, "--json"])
    assert {each["key"] for each in lines(capsys)} == set(left)


def test_what_is_listed_twice_is_counted_once(
    place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may tell of an object again when it changes meanwhile; it must not cost another."""
    listed = FileStore.objects

    def twice(store: FileStore) -> Iterator[StoredObject]:
        yield from listed(store)
        yield from listed(store)

    monkeypatch.setattr(FileStore, "objects", twice)
    assert run(["verify", "--store", place, "--json"]) == 0
    assert run(["prune", "--store", place, "--max-size", "4KB", "--json"]) == 0
    checked, pruned = lines(capsys)
    assert (checked["checked"], pruned["removed"]) == (5, 1)


def test_looking_changes_nothing(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A command knows no limit, so it drops nothing for one; a removal does not make it."""
    small = f"{place}?max_size=1"
    assert run(["ls", "--store", small]) == 0
    assert run(["prune", "--store", small, "--namespace", "never-was"]) == 0
    capsys.readouterr()
    run(["stats", "--store", place, "--json"])
    assert lines(capsys)[0]["objects"] == 5


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["ls", "--store", "file:/no/such/place"], 2, "--store: no directory '/no/such/place'"),
        (["ls", "--store", "{place}?max=3"], 2, "--store: file: no option 'max'; it has location"),
        (["ls", "--store", "nowhere"], 2, "--store: expected a store and where it is"),
        (["ls", "--store", "redis://127.0.0.1:1"], 3, "Redis at 127.0.0.1:1: "),
        (["prune", "--store", "{place}"], 2, "give --older-than, --max-size or --namespace"),
    ],
)
def test_a_wrong_flag_is_told(
    place: str,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    told: str,
) -> None:
    """What is wrong with a flag is one line that names it."""
    assert run([each.format(place=place) for each in arguments]) == code
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("flags", [["--older-than", "7"], ["--max-size", "7 apples"]])
def test_a_wrong_value_is_told(
    place: str, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    """A value that cannot be read is told with its flag."""
    with pytest.raises(SystemExit):
        run(["prune", "--store", place, *flags])
    assert f"argument {flags[0]}: expected" in capsys.readouterr().err


def test_objects_without_an_age() -> None:
    """Where a store knows no ages, none is old, and any may be too much."""
    objects = [StoredObject(f"a/{number}", 10) for number in range(3)]
    assert to_remove(objects, older_s=1, max_bytes=None) == []
    assert len(to_remove(objects, older_s=1, max_bytes=25)) == 1


def test_figures_for_readers() -> None:
    """Sizes and ages are told in fitting units."""
    assert [size_text(each) for each in (0, 1023, 1536, 20 << 30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "20 GiB",
    ]
    assert [age_text(each) for each in (None, 0.2, 59, 61, 7200, 90000)] == [
        "–",
        "0s",
        "59s",
        "1m",
        "2h",
        "1d",
    ]
    assert [read_age(each) for each in ("90s", "1.5h", "2w")] == [90, 5400, 1209600]
