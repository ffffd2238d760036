# SPDX-License-Identifier: MIT
"""A store whose behaviour a test scripts: it is slow, wrong, down or stuck when asked to be."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence

from attrs import define, field

from tokenspeed_l3.store import IoResult, StoreError

LIMIT_S = 60.0  # a gate that a test forgot opens by itself


@define(eq=False)
class ScriptedStore:
    """Objects in a mapping that several stores may share, and a script for how calls go.

    `shut` names the calls that wait until `open`: query, get, put, remove, close. `down` names
    those that raise. `landing` is how many keys of a get land at most, `damaged` the keys whose
    object is bad. `before` is called first in each call, on its thread, and may raise or sleep.
    """

    objects: dict[str, bytes] = field(factory=dict)
    failures_retire: bool = True
    landing: int | None = None
    damaged: set[str] = field(factory=set)
    down: set[str] = field(factory=set)
    before: Callable[[str], None] | None = None
    answer: Callable[[str, int], IoResult | None] | None = None
    shut: set[str] = field(factory=set)
    calls: Counter[str] = field(factory=Counter)
    keys: list[str] = field(factory=list)
    is_closed: bool = False
    _turned: threading.Condition = field(factory=threading.Condition)

    def open(self) -> None:
        """Let every waiting call go on."""
        with self._turned:
            self.shut.clear()
            self._turned.notify_all()

    def batch_exists(self, keys: Sequence[str]) -> Sequence[bool]:
        """Which keys have an object."""
        self._enter("query", keys)
        told = self._scripted("query", len(keys))
        return [key in self.objects for key in keys] if told is None else told.success

    def batch_get_into(self, keys: Sequence[str], pages: Sequence[memoryview]) -> IoResult:
        """Write objects into pages."""
        self._enter("get", keys)
        told = self._scripted("get", len(keys))
        if told is not None:
            return told
        landed = [self._land(key, page) for key, page in zip(keys, pages, strict=True)]
        if self.landing is not None:
            landed = [good and at < self.landing for at, good in enumerate(landed)]
        return IoResult(landed, [key in self.damaged for key in keys])

    def batch_put_from(self, keys: Sequence[str], pages: Sequence[memoryview]) -> IoResult:
        """Keep the pages' bytes."""
        self._enter("put", keys)
        told = self._scripted("put", len(keys))
        if told is not None:
            return told
        for key, page in zip(keys, pages, strict=True):
            self.objects[key] = bytes(page)
        return IoResult([True] * len(keys))

    def remove_by_prefix(self, prefix: str) -> bool:
        """Forget the objects of a namespace."""
        self._enter("remove", [prefix])
        for key in [key for key in list(self.objects) if key.startswith(prefix)]:
            self.objects.pop(key, None)
        return True

    def close(self) -> None:
        """Say that it is closed."""
        self._enter("close", ())
        self.is_closed = True

    def _land(self, key: str, page: memoryview) -> bool:
        content = self.objects.get(key)
        if content is None or key in self.damaged or len(content) != len(page):
            return False
        page[:] = content
        return True

    def _scripted(self, call: str, num_keys: int) -> IoResult | None:
        return None if self.answer is None else self.answer(call, num_keys)

    def _enter(self, call: str, keys: Sequence[str]) -> None:
        with self._turned:
            self.calls[call] += 1
            self.keys.extend(keys)
            self._turned.wait_for(lambda: call not in self.shut, LIMIT_S)
        if self.before is not None:
            self.before(call)
        if call in self.down:
            raise StoreError(f"scripted: {call} is down")


@define(eq=False)
class Mischief:
    """A `before` and `answer` that misbehave now and then, by a seed: delays, errors of the store's
    and other kinds, and answers of the wrong length."""

    rng: random.Random
    delay_s: float = 0.002
    rate: float = 0.15

    def before(self, call: str) -> None:
        """Wait a moment, or raise."""
        chance = self.rng.random()
        if call == "close":
            return
        if chance < self.rate:
            raise self.rng.choice([StoreError("scripted"), OSError("scripted"), KeyError("lost")])
        if chance < 3 * self.rate:
            time.sleep(self.rng.random() * self.delay_s)

    def answer(self, call: str, num_keys: int) -> IoResult | None:
        """Nonsense, seldom; no store may get a page of wrong bytes past its own check."""
        if self.rng.random() > self.rate / 3:
            return None
        size = self.rng.choice([0, num_keys + 1, num_keys])
        return IoResult([False] * size, self.rng.choice([(), [True] * size]))
