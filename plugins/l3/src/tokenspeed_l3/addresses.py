# SPDX-License-Identifier: MIT
"""Which store: `file:/path?max_size=20GiB`, `redis://host:6379/0`, `my_package.mine:Store:rest`.

The text before the first colon is an entry point of the group `tokenspeed.l3.stores`, or a module,
followed by the name of a factory in it. What comes next is the store's option `location`, and what
is behind `?` are further options.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Protocol, cast
from urllib.parse import parse_qsl

from attrs import field, frozen

from tokenspeed_l3.store import Store, StoreError

GROUP = "tokenspeed.l3.stores"


class MakeStore(Protocol):
    """A factory of stores. `buffers` are the memory all pages are parts of; none for commands that
    only look. ValueError: an option is wrong; StoreError: the store cannot be opened."""

    def __call__(self, options: Mapping[str, object], *, buffers: Sequence[memoryview]) -> Store:
        """Open the store."""
        ...


@frozen
class StoreAddress:
    """A store's name, or module and factory, and its options; `location` is one of them."""

    name: str
    factory: str = ""
    options: Mapping[str, object] = field(factory=dict)

    def __str__(self) -> str:
        return f"{self.name}:{self.factory}" if self.factory else self.name


def parse_address(text: str, options: Mapping[str, object] | None = None) -> StoreAddress:
    """Take an address apart; `options` go before those in the text. ValueError: it is none."""
    head, _, query = text.partition("?")
    name, colon, rest = head.partition(":")
    if not name or (not colon and name not in known_stores()):
        raise ValueError(
            f"expected a store and where it is, such as file:/var/cache/tokenspeed, got {text!r}; "
            f"stores installed: {', '.join(known_stores())}"
        )
    factory = ""
    if name not in known_stores():
        factory, _, rest = rest.partition(":")
        if not all(each.isidentifier() for each in (*name.split("."), factory)):
            raise ValueError(
                f"expected a store of {', '.join(known_stores())}, or module:Class, got {name!r} "
                "and what is behind it"
            )
    pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    given: dict[str, object] = {"location": rest} if rest else {}
    return StoreAddress(name, factory, given | dict(pairs) | dict(options or {}))


def known_stores() -> list[str]:
    """The names of the stores that are installed."""
    return sorted(point.name for point in entry_points(group=GROUP))


def open_store(address: StoreAddress, *, buffers: Sequence[memoryview] = ()) -> Store:
    """Make the store. ValueError: no such store, or an option is wrong. StoreError: it is not
    there, or a package it needs is not."""
    try:
        make = _find(address)
    except ImportError as error:
        raise StoreError(
            f"store {address} needs the package {error.name or 'it names'}, which does not load: "
            f"{error}; is the extra installed (pip install 'tokenspeed-l3[{address.name}]')?"
        ) from error
    return make(address.options, buffers=buffers)


def _find(address: StoreAddress) -> MakeStore:
    if not address.factory:
        (point,) = entry_points(group=GROUP, name=address.name)
        return cast(MakeStore, point.load())
    module = importlib.import_module(address.name)
    if not callable(make := getattr(module, address.factory, None)):
        raise ValueError(f"module {address.name} has no store {address.factory!r}")
    return cast(MakeStore, make)
