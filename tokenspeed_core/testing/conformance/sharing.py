# SPDX-License-Identifier: MIT
"""Two instances share nothing that changes: a process holds many ranks, and many engines."""

from __future__ import annotations

import errno
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from enum import Enum
from logging import Logger
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import attrs

from tokenspeed_core.errors import CompositionError
from tokenspeed_core.testing.conformance.running import ContractEngine
from tokenspeed_core.testing.conformance.subject import Features, Subject
from tokenspeed_hookspecs import Plugin

CONTAINERS = (list, dict, set, bytearray, deque)
FIXED = (str, bytes, int, float, complex, bool, type(None), frozenset, range, Enum, type)
FOREIGN = (
    ModuleType,
    FunctionType,
    MethodType,
    BuiltinFunctionType,
    Logger,
    type(threading.Lock()),
    threading.Thread,
)
DEPTH = 6
OBSERVERS = "tokenspeed_core.observers."


def check_sharing(subject: Subject) -> list[str]:
    """Run two engines in turn, then compare what their plugins hold, and what the class keeps."""
    before = dict(_kept_by_the_class(subject.plugin))
    first = ContractEngine(subject)
    second = _second(subject, first)
    running = [each for each in (first, second) if not each.is_stopped]
    try:
        for kind in subject.kinds:
            _run_in_turn(running, kind)
        problems = _shared(first, second)
    finally:
        for engine in running:
            engine.stop()
    # An instance's own class is a subclass made for the check; what it has of data was put there.
    own = [vars(type(each.instance)) for each in (first, second)]
    set_there = sorted(
        {name for each in own for name, value in each.items() if _is_data(name, value)}
    )
    problems += [
        f"class attribute {subject.plugin.__name__}.{name} is set by an instance"
        for name in set_there
    ]
    after = dict(_kept_by_the_class(subject.plugin))
    changed = [place for place in after if after[place] != before.get(place)]
    problems += [f"{place} changed while engines ran; keep state on self" for place in changed]
    return problems


def _second(subject: Subject, first: ContractEngine) -> ContractEngine:
    """Another engine beside the first; where both want one port, when the first has stopped."""
    try:
        return ContractEngine(subject)
    except CompositionError as error:
        first.stop()
        if not _is_taken(error):
            raise
    return ContractEngine(subject)


def _is_taken(error: BaseException) -> bool:
    """Whether a port that is in use is at the bottom of it."""
    cause: BaseException | None = error
    while cause is not None:
        if getattr(cause, "errno", None) == errno.EADDRINUSE:
            return True
        cause = cause.__cause__
    return False


def _run_in_turn(engines: Sequence[ContractEngine], kind: Features) -> None:
    names = [(each, each.new(kind)) for each in (*engines, engines[0])]
    for engine in [*engines] * 4:
        engine.round()
    for engine, name in names:
        engine.until_ended(name)


def _shared(first: ContractEngine, second: ContractEngine) -> list[str]:
    """The outermost objects that both instances hold."""
    theirs = {id(value) for _, value in held(second.instance)}
    found: dict[str, str] = {}
    for place, value in held(first.instance):
        # The engine's own objects are each rank's, and checked elsewhere.
        if id(value) in theirs and not _is_the_engines(value):
            top = place.partition("[")[0].partition(".")
            found.setdefault(top[2].partition(".")[0], f"{place} ({type(value).__name__})")
    return [f"{told} is one object in two instances" for told in found.values()]


def held(plugin: Plugin) -> Iterator[tuple[str, Any]]:
    """Everything that can change and that an instance reaches, with its place."""
    known = {id(getattr(plugin, name, None)) for name in ("engine", "options")}
    for name, value in list(vars(plugin).items()):
        yield from _walk(value, f"self.{name}", known=known)


def _walk(
    value: object, place: str, *, known: set[int], depth: int = 0
) -> Iterator[tuple[str, Any]]:
    """An object and what it holds, as far as it can change; frozen records are looked through."""
    if isinstance(value, (*FIXED, *FOREIGN)) or id(value) in known or depth > DEPTH:
        return
    known.add(id(value))
    if _is_the_engines(value):
        yield place, value
        return
    if isinstance(value, CONTAINERS) or (hasattr(value, "__dict__") and not _is_frozen(value)):
        yield place, value
    for name, part in _parts(value, place):
        yield from _walk(part, name, known=known, depth=depth + 1)


def _is_the_engines(value: object) -> bool:
    module = type(value).__module__
    return module.startswith("tokenspeed_core.") and not module.startswith(OBSERVERS)


def _parts(value: object, place: str) -> list[tuple[str, object]]:
    if isinstance(value, dict):
        return [(f"{place}[{key!r}]", each) for key, each in list(value.items())[:100]]
    if isinstance(value, (list, tuple, set, deque)):
        return [(f"{place}[{at}]", each) for at, each in enumerate(list(value)[:100])]
    names = [*getattr(value, "__dict__", ()), *_slots(type(value))]
    return [(f"{place}.{n}", getattr(value, n)) for n in names if hasattr(value, n)]


def _slots(owner: type) -> list[str]:
    found = [each for cls in owner.__mro__ for each in getattr(cls, "__slots__", ())]
    return [each for each in found if isinstance(each, str) and not each.startswith("__")]


def _is_frozen(value: object) -> bool:
    return attrs.has(type(value)) and type(value).__setattr__ is not object.__setattr__


def _kept_by_the_class(plugin: type[Plugin]) -> Iterator[tuple[str, str]]:
    """What the class, its bases and the modules of its package hold, as text."""
    for owner in plugin.__mro__:
        if owner in (Plugin, object):
            continue
        for name, value in list(vars(owner).items()):
            if _is_data(name, value):
                yield f"class attribute {owner.__name__}.{name}", repr(value)
            if isinstance(value, FunctionType) and (value.__defaults__ or value.__kwdefaults__):
                defaults = repr((value.__defaults__, value.__kwdefaults__))
                yield f"a default argument of {owner.__name__}.{name}", defaults
    for module in _package(plugin):
        for name, value in list(vars(module).items()):
            if _is_data(name, value):
                yield f"{module.__name__}.{name}", repr(value)


def _is_data(name: str, value: object) -> bool:
    return isinstance(value, (*CONTAINERS, int, float, str)) and not name.startswith("__")


def _package(plugin: type[Plugin]) -> list[ModuleType]:
    """The modules of the plugin's package that are loaded; one file where it is no package."""
    own = plugin.__module__
    package, is_inside, _ = own.rpartition(".")
    if not is_inside or package.startswith(("tokenspeed_core", "tests")):
        return [sys.modules[own]] if own in sys.modules else []
    names = [name for name in sys.modules if name.startswith(f"{package}.") or name == package]
    return [sys.modules[name] for name in sorted(names)]
