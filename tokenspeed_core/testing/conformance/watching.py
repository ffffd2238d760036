# SPDX-License-Identifier: MIT
"""A plugin's class with every round hook and stage watched: what it wrote, how long it took.

The watched class is a subclass, so that what is checked is the plugin's own code, composed and
called as always. Wrappers are left alone: what they do shows in whom they wrap.
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, cast

import attrs
from attrs import define, field, frozen

from tokenspeed_core.composition.round_hooks import ROUND_HOOKS
from tokenspeed_core.composition.signatures import implementation_options, implemented
from tokenspeed_hookspecs import AdmissionStage, Batch, Hold, Plugin, Request, Round, Verdict

WRITABLE = {"dispatch": frozenset({"commit_first"})}
ROUND_FIELDS = tuple(attribute.name for attribute in attrs.fields(Round))
_now, _busy = time.perf_counter, time.thread_time  # kept, should a test turn the module's clocks


@frozen
class Call:
    """One call: seconds it took, seconds of them on the CPU, and how often it gave the CPU up."""

    hook: str
    round: int
    seconds: float
    cpu_s: float
    waits: int

    @property
    def waited_s(self) -> float:
        """Seconds it waited for something; 0 where only the machine was busy."""
        return max(0.0, self.seconds - self.cpu_s) if self.waits else 0.0


@define
class Watcher:
    """What was seen of one instance: its calls and faults, the stage that holds each request, and
    the extensions that inputs were attached for. `inside` is the hook that runs now."""

    calls: list[Call] = field(factory=list)
    faults: list[str] = field(factory=list)
    held: dict[str, str] = field(factory=dict)
    attached: set[str] = field(factory=set)
    inside: str = ""
    thread: int = 0
    round_number: int = 0

    @property
    def is_inside_here(self) -> bool:
        """Whether the caller's thread is in a hook now."""
        return bool(self.inside) and self.thread == threading.get_ident()

    def fault(self, text: str) -> None:
        """Remember a fault once."""
        if text not in self.faults:
            self.faults.append(text)

    @contextmanager
    def calling(self, hook: str) -> Iterator[None]:
        """Time one call."""
        outer, self.inside, self.thread = self.inside, hook, threading.get_ident()
        waits = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        start, cpu = _now(), _busy()
        try:
            yield
        finally:
            seconds, cpu_s = _now() - start, _busy() - cpu
            waited = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - waits
            self.calls.append(Call(hook, self.round_number, seconds, cpu_s, waited))
            self.inside = outer

    @contextmanager
    def reading(self, hook: str, round: Round) -> Iterator[None]:
        """See that a hook writes nothing of the round that is not for writing."""
        before = {name: getattr(round, name) for name in ROUND_FIELDS}
        batch = _print(round.batch)
        yield
        allowed = WRITABLE.get(hook, frozenset())
        for name, value in before.items():
            if getattr(round, name) is not value and name not in allowed:
                self.fault(f"hook {hook} wrote round.{name}, which is for reading only")
        if _print(round.batch) != batch:
            self.fault(f"hook {hook} changed the batch in round.batch, which is for reading only")
        inputs = list(round.dispatch.inputs) if round.dispatch is not None else []
        self.attached.update(inputs)


def watched(plugin: type[Plugin], watcher: Watcher) -> type[Plugin]:
    """The class with its round hooks and stages watched; name, options and order stay."""
    members: dict[str, Any] = {"__module__": plugin.__module__, "__doc__": plugin.__doc__}
    every = implementation_options(plugin)
    for hook, method in implemented(plugin).items():
        options = every[hook]
        if options.get("wrapper") or options.get("hookwrapper"):
            continue
        if hook in ROUND_HOOKS:
            members[method] = _watched_hook(getattr(plugin, method), hook, watcher=watcher)
        elif hook == "admission_stages":
            members[method] = _watched_stages(getattr(plugin, method), watcher)
    return cast("type[Plugin]", type(plugin.__name__, (plugin,), members))


def _watched_hook(method: Callable[..., Any], hook: str, *, watcher: Watcher) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Plugin, round: Round) -> Any:
        watcher.round_number = round.number
        with watcher.reading(hook, round), watcher.calling(hook):
            return method(self, round)

    return call


def _watched_stages(method: Callable[..., Any], watcher: Watcher) -> Callable[..., Any]:
    @wraps(method)
    def call(self: Plugin) -> Any:
        stages = method(self)
        return [WatchedStage(stage, watcher) for stage in stages]

    return call


@frozen
class WatchedStage:
    """A stage that is watched; `watcher.held` has what it holds, by request id."""

    stage: AdmissionStage
    watcher: Watcher

    @property
    def name(self) -> str:
        """The stage's own name."""
        return self.stage.name

    def enter(self, request: Request) -> Verdict:
        """Let the stage decide."""
        with self.watcher.calling(f"stage {self.name}.enter"):
            verdict = self.stage.enter(request)
        if isinstance(verdict, Hold):
            self.watcher.held[request.request_id] = self.name
        return verdict

    def poll(self, held: Sequence[Request]) -> Sequence[int]:
        """Let the stage look."""
        with self.watcher.calling(f"stage {self.name}.poll"):
            return self.stage.poll(held)

    def settle(self, held: Sequence[Request], agreed: Sequence[int]) -> Sequence[Verdict]:
        """Let the stage decide."""
        with self.watcher.calling(f"stage {self.name}.settle"):
            verdicts = self.stage.settle(held, agreed)
        for request, verdict in zip(held, verdicts, strict=False):
            if not isinstance(verdict, Hold):
                self.watcher.held.pop(request.request_id, None)
        return verdicts

    def leave(self, request_id: str) -> None:
        """Let the stage forget."""
        self.watcher.held.pop(request_id, None)
        with self.watcher.calling(f"stage {self.name}.leave"):
            self.stage.leave(request_id)


def _print(batch: Batch | None) -> object:
    if batch is None:
        return None
    tables = {group: table.tobytes() for group, table in batch.block_tables.items()}
    rows = (batch.request_ids, batch.slots.tobytes(), batch.input_lengths, batch.num_extends)
    return repr((rows, tables))
