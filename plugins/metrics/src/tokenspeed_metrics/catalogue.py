# SPDX-License-Identifier: MIT
"""Every series of a rank by name and labels: what the contract calls `Instruments`."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar, cast

from attrs import define, field, frozen

from tokenspeed_metrics.series import Counter, Gauge, Histogram, Series

NAME = re.compile(r"[a-z][a-z0-9_]*")
RESERVED = ("engine", "le", "model_name")
REJECTED = "rejected_values"
REJECTED_MEANING = "Values that a series could not take."
Labels = Mapping[str, str] | None
S = TypeVar("S", bound=Series)


@frozen
class Form:
    """What all series of a name have in common; `bounds` are those a histogram is told in."""

    kind: type[Series]
    label_names: tuple[str, ...]
    bounds: tuple[float, ...] = ()


@define(eq=False)
class Family:
    """The series of one name, by the values of their labels."""

    name: str
    meaning: str
    form: Form
    series: dict[tuple[str, ...], Series] = field(factory=dict)


@frozen(kw_only=True)
class Buckets:
    """Bounds by a histogram's name: `instead` of those asked for, and `beside` them, so that the
    same values can be told in those, too."""

    instead: Mapping[str, Sequence[float]] = field(factory=dict)
    beside: Mapping[str, Sequence[float]] = field(factory=dict)


class Catalogue:
    """Makes series, and finds them again; `common` are the names of labels that all will have."""

    def __init__(
        self,
        log: logging.Logger,
        buckets: Buckets | None = None,
        *,
        common: Iterable[str] = (),
    ) -> None:
        self._log = log
        self._buckets = buckets or Buckets()
        self._common = frozenset(common)
        self._families: dict[str, Family] = {}
        self._settles: list[Callable[[], None]] = []
        self._settling = threading.Lock()

    def __iter__(self) -> Iterator[Family]:
        return iter(list(self._families.values()))

    def get(self, name: str) -> Family | None:
        """The family of this name, if anybody asked for one of its series."""
        return self._families.get(name)

    def before_reading(self, settle: Callable[[], None]) -> None:
        """Have `settle` bring series up to date before they are read, one thread at a time."""
        self._settles.append(settle)

    def settle(self) -> None:
        """Bring everything up to date, for a reader."""
        with self._settling:
            for settle in self._settles:
                settle()

    def settle_if_free(self) -> None:
        """The same, for the loop: it leaves the work to a reader that is at it."""
        if self._settling.acquire(blocking=False):
            try:
                for settle in self._settles:
                    settle()
            finally:
                self._settling.release()

    def counter(self, name: str, meaning: str, *, labels: Labels = None) -> Counter:
        """The counter of this name and these labels."""
        if name.endswith("_total"):
            raise ValueError(f"counter {name!r}: leave out `_total`, which every counter gets")
        family = self._family(name, meaning, form=Form(Counter, tuple(labels or ())))
        return _child(family, labels, make=lambda: Counter(self._complaint(name)))

    def gauge(self, name: str, meaning: str, *, labels: Labels = None) -> Gauge:
        """The gauge of this name and these labels."""
        family = self._family(name, meaning, form=Form(Gauge, tuple(labels or ())))
        return _child(family, labels, make=lambda: Gauge(self._complaint(name)))

    def histogram(
        self, name: str, meaning: str, *, buckets: Sequence[float], labels: Labels = None
    ) -> Histogram:
        """The histogram of this name and these labels."""
        bounds = tuple(self._buckets.instead.get(name, buckets))
        if not bounds or list(bounds) != sorted(set(bounds)):
            raise ValueError(f"histogram {name!r}: expected ascending buckets, got {bounds}")
        family = self._family(name, meaning, form=Form(Histogram, tuple(labels or ()), bounds))
        counted = sorted({*bounds, *self._buckets.beside.get(name, ())})
        return _child(family, labels, make=lambda: Histogram(self._complaint(name), counted))

    def _family(self, name: str, meaning: str, *, form: Form) -> Family:
        found = self._families.get(name)
        if found is None:
            self._check_names(name, form)
            found = self._families[name] = Family(name, meaning, form)
        if found.form != form:
            raise ValueError(f"{name!r} is {found.form} already and cannot be {form}")
        return found

    def _check_names(self, name: str, form: Form) -> None:
        if not NAME.fullmatch(name):
            raise ValueError(f"expected lower-case words joined by _ as a name, got {name!r}")
        problems = label_problems(form.label_names)
        if taken := self._common.intersection(form.label_names):
            problems.append(f"the label {min(taken)!r} is on every series already")
        if problems:
            raise ValueError(f"{name!r}: {'; '.join(problems)}")

    def _complaint(self, name: str) -> Callable[[object], None]:
        """What a series does with a value it cannot take: the first is told, all are counted."""

        def complain(value: object) -> None:
            counter = self.counter(REJECTED, REJECTED_MEANING, labels={"series": name})
            if not counter.value:
                text = "instrument %r cannot record %r; further ones are only counted"
                self._log.error(text, name, value)
            counter.add()

        return complain


def _child(family: Family, labels: Labels, *, make: Callable[[], S]) -> S:
    key = tuple(str(value) for value in (labels or {}).values())
    if key not in family.series:
        family.series[key] = make()
    return cast(S, family.series[key])  # of the family's kind, as the form was compared


def label_problems(label_names: Iterable[str]) -> list[str]:
    """A sentence for each name that a series cannot have as a label."""
    return [
        f"expected lower-case words joined by _ and none of {', '.join(RESERVED)} as a label, "
        f"got {name!r}"
        for name in label_names
        if not NAME.fullmatch(name) or name in RESERVED
    ]
