# SPDX-License-Identifier: MIT
"""`tokenspeed l3`: what is in a store, whether it is whole, and less of it.

An engine may use the store meanwhile.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec
from attrs import asdict, frozen
from rich.console import Console
from rich.progress import Progress

from tokenspeed_l3.addresses import open_store, parse_address
from tokenspeed_l3.contents import (
    Contents,
    age_text,
    namespace_of,
    read_age,
    size_text,
    to_remove,
)
from tokenspeed_l3.store import BrowsableStore, Store, StoredObject, StoreError
from tokenspeed_l3.store_options import read_size

REFUSED, DAMAGED, FAILED = 2, 1, 3
WIDTH = 11  # of a cell, as in 1023.9 MiB


class _Browsable(Store, BrowsableStore, Protocol):
    """A store that commands can use."""


@frozen
class _Call:
    """One call of a command: its flags, the store, and where it writes."""

    given: argparse.Namespace
    store: _Browsable
    console: Console

    def objects(self) -> Iterator[StoredObject]:
        """The objects that are asked for."""
        wanted: str | None = self.given.namespace
        for each in self.store.objects():
            if wanted is None or namespace_of(each.key) == wanted:
                yield each

    def objects_once(self) -> list[StoredObject]:
        """The same, but none twice, as a store may list one while it changes."""
        return list({each.key: each for each in self.objects()}.values())

    def watched(
        self, objects: Iterable[StoredObject], what: str, *, total: int
    ) -> Iterator[StoredObject]:
        """The same objects, with a bar on a terminal."""
        hidden = self.given.json or not sys.stderr.isatty()
        with Progress(console=Console(stderr=True), transient=True, disable=hidden) as progress:
            yield from progress.track(objects, total=total, description=what)

    def row(self, *cells: str, name: str) -> None:
        """Write a line for people, the name last and whole, so that it can be copied."""
        if not self.given.json:
            text = "".join(f"{cell:>{WIDTH}}" for cell in cells) + f"  {name}"
            self.line(text)

    def line(self, text: str) -> None:
        """Write a line as it is: what is in it may be somebody else's."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def tell(self, facts: Mapping[str, Any]) -> None:
        """Write a line of JSON."""
        sys.stdout.write(msgspec.json.encode(facts).decode() + "\n")


def run(arguments: list[str]) -> int:
    """Run `ls`, `stats`, `verify` or `prune`. 1: damage was found; 2: a flag is wrong; 3: the store
    does not answer."""
    given = _parser().parse_args(arguments)
    try:
        with _opened(given.store) as store:
            act: Callable[[_Call], int] = given.act
            return act(_Call(given, store, Console()))
    except ValueError as error:
        return _fail(f"--store: {error}", REFUSED)
    except StoreError as error:
        return _fail(str(error), FAILED)


def list_objects(call: _Call) -> int:
    """`ls`: a line an object."""
    limit = call.given.limit
    call.row("size", "age", name="object")
    for number, each in enumerate(call.objects()):
        if limit and number == limit:
            sys.stderr.write(f"tokenspeed: only the first {limit}; --limit 0 shows all\n")
            break
        if call.given.json:
            call.tell(asdict(each))
        else:
            call.row(size_text(each.size), age_text(each.age_s), name=each.key)
    return 0


def tell_stats(call: _Call) -> int:
    """`stats`: a line a namespace, the largest first."""
    found = Contents.of(call.objects()).sorted()
    call.row("objects", "size", "youngest", "oldest", name="namespace")
    for each in found:
        ages = (age_text(each.youngest_s), age_text(each.oldest_s))
        call.row(f"{each.objects:,}", size_text(each.bytes), *ages, name=each.namespace)
    total, size = sum(each.objects for each in found), sum(each.bytes for each in found)
    if call.given.json:
        namespaces = [asdict(each) for each in found]
        call.tell({"objects": total, "bytes": size, "namespaces": namespaces})
    else:
        call.console.print(f"{total:,} objects, {size_text(size)}", highlight=False)
    return 0


def verify(call: _Call) -> int:
    """`verify`: read every object and name those that are damaged."""
    objects = call.objects_once()
    checked, damaged = 0, 0
    for each in call.watched(objects, "reading", total=len(objects)):
        try:
            problem = call.store.check(each.key)
        except KeyError:
            continue  # it went meanwhile
        checked += 1
        if problem is None:
            continue
        damaged += 1
        is_removed, end = _removed(call, each.key) if call.given.remove else (False, "")
        if call.given.json:
            call.tell({"key": each.key, "problem": problem, "removed": is_removed})
        else:
            call.line(f"{each.key}: {problem}{end}")
    if call.given.json:
        call.tell({"checked": checked, "damaged": damaged})
    else:
        call.console.print(f"{checked:,} objects read, {damaged:,} damaged", highlight=False)
    return DAMAGED if damaged else 0


def _removed(call: _Call, key: str) -> tuple[bool, str]:
    """Whether a damaged object was removed, and words for it; one that cannot be is no reason to
    leave the others."""
    try:
        return call.store.remove(key), "; removed"
    except StoreError as error:
        return False, f"; not removed: {error}"


def prune(call: _Call) -> int:
    """`prune`: remove what is old, too much, or of a namespace."""
    given = call.given
    if given.older_than is None and given.max_size is None and given.namespace is None:
        return _fail("prune: give --older-than, --max-size or --namespace", REFUSED)
    objects = call.objects_once()
    if given.older_than is not None or given.max_size is not None:
        objects = to_remove(objects, older_s=given.older_than, max_bytes=given.max_size)
    removed, size = 0, 0
    for each in call.watched(objects, "removing", total=len(objects)):
        if given.dry_run or call.store.remove(each.key):
            removed += 1
            size += each.size
    if given.json:
        call.tell({"removed": removed, "bytes": size, "dry_run": given.dry_run})
    else:
        verb = "would be removed" if given.dry_run else "removed"
        call.console.print(f"{removed:,} objects {verb}, {size_text(size)}", highlight=False)
    return 0


def _parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--store", required=True, metavar="ADDRESS", help="such as file:/path or redis://host:6379"
    )
    shared.add_argument("--namespace", metavar="TEXT", help="only objects of this namespace")
    shared.add_argument("--json", action="store_true", help="a line of JSON an item")
    parser = argparse.ArgumentParser("tokenspeed l3", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, act: Callable[[_Call], int], *, words: str) -> argparse.ArgumentParser:
        found = commands.add_parser(name, help=words, description=words, parents=[shared])
        found.set_defaults(act=act)
        return found

    listing = add("ls", list_objects, words="list objects")
    listing.add_argument(
        "--limit", type=_read(_count), default=100, metavar="N", help="how many (100); 0 is all"
    )
    add("stats", tell_stats, words="count objects and bytes by namespace")
    verifying = add("verify", verify, words="read every object, name the damaged; 1 if any are")
    verifying.add_argument("--remove", action="store_true", help="remove the damaged")
    pruning = add("prune", prune, words="remove objects")
    pruning.add_argument(
        "--older-than", type=_read(read_age), metavar="AGE", help="not used for so long, as 7d"
    )
    pruning.add_argument(
        "--max-size", type=_read(read_size), metavar="SIZE", help="the oldest above this, as 10GiB"
    )
    pruning.add_argument("--dry-run", action="store_true", help="only say how many")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"expected a number from 0, got {text!r}")
    return int(text)


def _read(read: Callable[[str], Any]) -> Callable[[str], Any]:
    """A reader whose errors argparse shows."""

    def reader(text: str) -> Any:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return reader


@contextmanager
def _opened(text: str) -> Iterator[_Browsable]:
    address = parse_address(text)
    place = str(address.options.get("location", ""))
    if address.name == "file" and not os.path.isdir(place):
        # An engine would make it; who looks has mistyped it.
        raise ValueError(f"no directory {place!r}")
    store = open_store(address)
    try:
        if not isinstance(store, BrowsableStore):
            raise StoreError(f"store {address} cannot be listed")
        yield store
    finally:
        store.close()


def _fail(text: str, code: int) -> int:
    sys.stderr.write(f"tokenspeed: {text}\n")
    return code
