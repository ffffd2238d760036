# SPDX-License-Identifier: MIT
"""Whether a plugin's methods are the hooks they are meant to be.

pluggy accepts fewer arguments than specified and never sees a method without its marker. Both are
mistakes here: each is reported, with the nearest right name.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import frozen

from tokenspeed_core.composition.annotations import annotation_problems
from tokenspeed_core.config.nearest import unknown
from tokenspeed_hookspecs import PROJECT, Mode, Plugin

SPEC_MARK, IMPLEMENTATION_MARK, MODE_MARK = (
    f"{PROJECT}_spec",
    f"{PROJECT}_impl",
    f"{PROJECT}_mode",
)
UNWRAPPED = frozenset({"round_report", "start", "stop"})  # each result or failure has an owner


@frozen
class HookSpec:
    """A hook of the contract: its arguments without `self`, and what an exception means."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[str, ...]
    mode: Mode


def hook_specs() -> dict[str, HookSpec]:
    """Return every hook of the contract, in the order it is written down."""
    marked = {name: each for name, each in vars(Plugin).items() if hasattr(each, SPEC_MARK)}
    return {
        name: HookSpec(name, each, _arguments(each), getattr(each, MODE_MARK))
        for name, each in marked.items()
    }


def implemented(plugin: type[Plugin]) -> dict[str, str]:
    """Return the hooks a class implements, each with its method's name."""
    return {opts["specname"] or name: name for name, _, opts in _methods(plugin) if opts}


def implementation_options(plugin: type[Plugin]) -> dict[str, Mapping[str, Any]]:
    """Return how a class implements each of its hooks, in pluggy's words."""
    return {opts["specname"] or name: opts for name, _, opts in _methods(plugin) if opts}


def signature_problems(plugin: type[Plugin]) -> list[str]:
    """Return everything wrong with a class's hooks, in the order of their names."""
    specs = hook_specs()
    problems: list[str] = []
    for name, function, opts in _methods(plugin):
        hook = (opts["specname"] if opts else None) or name
        spec = specs.get(hook)
        if spec is None:
            if opts and not opts["optionalhook"]:
                problems.append(unknown("hook", hook, known=specs))
        elif not opts:
            problems.append(f"{name} has no @hookimpl and would never be called")
        else:
            problems.extend(f"{name} {text}" for text in _problems(function, spec, opts=opts))
    return problems


def _methods(plugin: type[Plugin]) -> Iterator[tuple[str, Any, Mapping[str, Any] | None]]:
    """The functions of a class that are hooks or are named like one."""
    for name in sorted(dir(plugin)):
        held = inspect.getattr_static(plugin, name)
        function = getattr(held, "__func__", held)
        if not inspect.isfunction(function) or hasattr(function, SPEC_MARK):
            continue
        yield name, function, getattr(function, IMPLEMENTATION_MARK, None)


def _problems(
    function: Callable[..., Any], spec: HookSpec, *, opts: Mapping[str, Any]
) -> Iterator[str]:
    if opts["hookwrapper"]:
        yield "is an old-style wrapper; use @hookimpl(wrapper=True)"
    if opts["wrapper"] and spec.name in UNWRAPPED:
        yield "cannot be wrapped: each plugin's own call counts"
    if inspect.iscoroutinefunction(function):
        yield "is async; hooks run on the loop thread and must not wait"
    elif inspect.isgeneratorfunction(function) and not (opts["wrapper"] or opts["hookwrapper"]):
        yield "yields, but is no wrapper; return a list, or use @hookimpl(wrapper=True)"
    found = _arguments(function)
    if found != spec.arguments:
        yield f"takes ({', '.join(found)}), the hook has ({', '.join(spec.arguments)})"
    is_wrapper = opts["wrapper"] or opts["hookwrapper"]
    yield from annotation_problems(function, spec.function, has_result=not is_wrapper)


def _arguments(function: Callable[..., Any]) -> tuple[str, ...]:
    shown: dict[Any, str] = {
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.VAR_KEYWORD: "**",
    }
    parameters = list(inspect.signature(function).parameters.values())[1:]
    return tuple(shown.get(each.kind, "") + each.name for each in parameters)
