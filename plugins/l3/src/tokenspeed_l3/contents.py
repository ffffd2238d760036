# SPDX-License-Identifier: MIT
"""What is in a store, as commands tell it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from attrs import define, field

from tokenspeed_l3.store import StoredObject

AGES: Mapping[str, float] = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@define
class NamespaceContents:
    """The objects of one namespace, summed up."""

    namespace: str
    objects: int = 0
    bytes: int = 0
    youngest_s: float | None = None
    oldest_s: float | None = None

    def add(self, found: StoredObject) -> None:
        """Count an object."""
        self.objects += 1
        self.bytes += found.size
        if (age := found.age_s) is not None:
            self.youngest_s = age if self.youngest_s is None else min(self.youngest_s, age)
            self.oldest_s = age if self.oldest_s is None else max(self.oldest_s, age)


@define
class Contents:
    """The objects of a store by namespace."""

    namespaces: dict[str, NamespaceContents] = field(factory=dict)

    @classmethod
    def of(cls, objects: Iterable[StoredObject]) -> Contents:
        """Sum up these objects."""
        contents = cls()
        for each in objects:
            name = namespace_of(each.key)
            contents.namespaces.setdefault(name, NamespaceContents(name)).add(each)
        return contents

    def sorted(self) -> list[NamespaceContents]:
        """The largest first."""
        return sorted(self.namespaces.values(), key=lambda each: (-each.bytes, each.namespace))


def namespace_of(key: str) -> str:
    """The namespace of a key."""
    return key.partition("/")[0]


def read_age(text: str) -> float:
    """Seconds of a text such as 90s, 30m, 12h, 7d or 2w. ValueError: it is none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw])", text)
    if match is None:
        raise ValueError(f"expected an age such as 30m, 12h or 7d, got {text!r}")
    return float(match[1]) * AGES[match[2]]


def size_text(size: int) -> str:
    """A size for readers."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} TiB"


def age_text(age_s: float | None) -> str:
    """An age for readers."""
    if age_s is None:
        return "–"
    unit = max((each for each in AGES if AGES[each] <= age_s), key=AGES.__getitem__, default="s")
    return f"{age_s / AGES[unit]:.0f}{unit}"


def to_remove(
    objects: Iterable[StoredObject], *, older_s: float | None, max_bytes: int | None
) -> list[StoredObject]:
    """Of these objects those that are older, and the oldest of what is too much. One without an
    age counts as the oldest of all where there is too much, and as young otherwise."""
    old: list[StoredObject] = []
    rest: list[StoredObject] = []
    for each in objects:
        is_old = older_s is not None and each.age_s is not None and each.age_s > older_s
        (old if is_old else rest).append(each)
    if max_bytes is not None:
        excess = sum(each.size for each in rest) - max_bytes
        rest.sort(key=lambda each: -(float("inf") if each.age_s is None else each.age_s))
        for each in rest:
            if excess <= 0:
                break
            old.append(each)
            excess -= each.size
    return old
