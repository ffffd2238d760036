# SPDX-License-Identifier: MIT
"""What a process holds, and what of it is left over once a plugin has stopped."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from attrs import frozen

from tokenspeed_core.composition.build import Surroundings, build_rank
from tokenspeed_core.testing.conformance.running import ContractEngine, setup_of
from tokenspeed_core.testing.conformance.sharing import held
from tokenspeed_core.testing.conformance.subject import Subject
from tokenspeed_core.testing.conformance.watching import Watcher

GRACE_S = 1.0
NAP_S = 0.01
FILES = Path("/proc/self/fd")
CHILDREN = Path("/proc/self/task")
_nap = time.sleep


@frozen
class Footprint:
    """Threads, descriptors, child processes, live tensors, and what is set for the process."""

    threads: frozenset[threading.Thread]
    files: Counter[str]
    children: frozenset[str]
    tensors: int
    settings: Mapping[str, object]

    @classmethod
    def now(cls) -> Footprint:
        """What the process holds now."""
        gc.collect()
        return cls(
            frozenset(threading.enumerate()), _open_files(), _children(), _tensors(), _settings()
        )

    def leftovers(self, since: Footprint) -> list[str]:
        """What is there now that was not there before."""
        found = [f"the thread {each.name!r} still runs" for each in self.threads - since.threads]
        found += [f"{name} is still open" for name in (self.files - since.files).elements()]
        found += [f"child process {each} still runs" for each in self.children - since.children]
        if self.tensors > since.tensors:
            found.append(f"{self.tensors - since.tensors} tensors are still alive")
        changed = [key for key in since.settings if self.settings[key] != since.settings[key]]
        found += [f"{key} of the whole process was changed" for key in changed]
        return sorted(found)


def left_over(before: Footprint, grace_s: float = GRACE_S) -> list[str]:
    """What a plugin left since `before`, with a moment for what is just ending.

    The moment is counted in naps: where other processes are busy, threads take longer to end.
    """
    found = Footprint.now().leftovers(before)
    for _ in range(round(grace_s / NAP_S)):
        if not found:
            break
        _nap(NAP_S)
        found = Footprint.now().leftovers(before)
    return found


@contextmanager
def new_objects_only() -> Iterator[None]:
    """Let footprints look at objects made from now on. A process with a model library in it has
    half a million others, and to look at each takes longer than what is checked."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def check_life(subject: Subject) -> list[str]:
    """After stop nothing is left: no thread, descriptor, process, tensor, request or instance."""
    _warm_up(subject)
    with new_objects_only():
        found = [f"after stop {each}" for each in _life(subject, Footprint.now())]
        again = [f"after a second engine's stop {each}" for each in _life(subject, Footprint.now())]
    return found or again


def check_unstarted(subject: Subject) -> list[str]:
    """An engine that is composed and never started leaves nothing either."""
    _warm_up(subject)
    with new_objects_only():
        before = Footprint.now()
        setup = setup_of(subject, Watcher())
        around = Surroundings(frontend=setup.frontend, tokenizer=setup.tokenizer)
        rank = build_rank(setup.config(), setup.plugins, surroundings=around)
        rank.stop()
        del rank, setup, around
        return [f"an engine that was never started: {each}" for each in left_over(before)]


def _life(subject: Subject, before: Footprint) -> list[str]:
    engine = ContractEngine(subject)
    try:
        engine.until_ended(*(engine.new(kind) for kind in subject.kinds for _ in range(2)))
        engine.to_idle()
        found = _kept_requests(engine)
    finally:
        engine.stop()
    engine.stop()  # an engine may be stopped again after a failed stop
    plugin, states = weakref.ref(engine.instance), engine.states
    del engine
    found += left_over(before, min(GRACE_S, subject.patience_s))
    if (kept := plugin()) is not None:
        found.append(f"the plugin's instance is kept alive by {_holders(kept)}")
    elif alive := [state for each in states if (state := each()) is not None]:
        found.append(f"{len(alive)} ended requests are kept alive by {_holders(alive[0])}")
    return found


def _kept_requests(engine: ContractEngine) -> list[str]:
    """Ended requests that the plugin still reaches, by their place."""
    states = {id(state) for each in engine.states if (state := each()) is not None}
    kept = [place for place, value in held(engine.instance) if id(value) in states]
    if not kept:
        return []
    return [f"{len(kept)} ended requests are kept, the first in {kept[0]}"]


def _holders(kept: object) -> str:
    """Who holds an object, as far as can be told."""
    holders = [each for each in gc.get_referrers(kept) if not hasattr(each, "f_code")]
    places = [_place(each) for each in holders]
    return ", ".join(sorted({place for place in places if place})) or "something"


def _place(holder: object) -> str:
    if isinstance(holder, dict):
        for module in list(sys.modules.values()):
            if getattr(module, "__dict__", None) is holder:
                return f"module {module.__name__}"
    return type(holder).__name__


def _warm_up(subject: Subject) -> None:
    """Let imports and caches of libraries come before the count."""
    engine = ContractEngine(subject)
    engine.until_ended(engine.new())
    engine.stop()


def _open_files() -> Counter[str]:
    names: Counter[str] = Counter()
    for entry in os.listdir(FILES):
        try:
            target = os.readlink(FILES / entry)
        except OSError:
            continue  # the listing's own descriptor
        kind = target.partition(":")[0]
        names[f"a {kind}" if kind in {"socket", "pipe", "anon_inode"} else target] += 1
    return names


def _children() -> frozenset[str]:
    found: set[str] = set()
    for each in CHILDREN.glob("*/children"):
        with contextlib.suppress(OSError):  # a thread that ended meanwhile
            found.update(each.read_text().split())
    return frozenset(found)


def _tensors() -> int:
    """Tensors that are alive; none where torch was never imported."""
    torch = sys.modules.get("torch")
    if torch is None:
        return 0
    return sum(isinstance(each, torch.Tensor) for each in gc.get_objects())


def _settings() -> dict[str, object]:
    root = logging.getLogger()
    named = {f"the handler of {each.name}": signal.getsignal(each) for each in _signals()}
    return {
        **named,
        "the root logger": (tuple(root.handlers), root.level),
        "sys.excepthook": sys.excepthook,
        "the working folder": os.getcwd(),
        "the environment": tuple(sorted(os.environ.items())),
    }


def _signals() -> list[signal.Signals]:
    return [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM]
