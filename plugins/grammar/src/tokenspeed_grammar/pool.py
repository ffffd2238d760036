# SPDX-License-Identifier: MIT
"""The threads that compile. A compile cannot be stopped: a thread that is stuck is lost until it
ends, so there are only so many, and none of them keeps the process alive."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable

from attrs import define, field

from tokenspeed_grammar.backend import CompiledGrammar, GrammarError
from tokenspeed_grammar.keys import GrammarKey
from tokenspeed_hookspecs import Clock

STOP_WAIT_S = 1.0  # for a thread inside a compile
END_WAIT_S = 30.0  # for one that only has to end; where other processes are busy that takes a while
STEP_S = 0.01
NICENESS, LEAST_NICE = 5, 19
Compile = Callable[[GrammarKey], CompiledGrammar]


@define(eq=False)
class CompileJob:
    """One compile. Its thread sets `started_at`, then one of `compiled` and `reason`, then `done`;
    it stays set, so that a compile that ends between two looks is still judged by its start."""

    key: GrammarKey
    is_wanted: Callable[[], bool]
    started_at: float | None = None
    compiled: CompiledGrammar | None = None
    reason: str = ""
    done: bool = False


@define(eq=False)
class CompilePool:
    """Compiles jobs in their order, on `num_threads` threads."""

    compile: Compile
    clock: Clock
    num_threads: int
    _jobs: queue.SimpleQueue[CompileJob | None] = field(factory=queue.SimpleQueue, init=False)
    _ended: queue.SimpleQueue[CompileJob] = field(factory=queue.SimpleQueue, init=False)
    _threads: list[threading.Thread] = field(factory=list, init=False)
    _compiling: set[int] = field(factory=set, init=False)
    _is_stopped: bool = field(default=False, init=False)

    def start(self) -> None:
        """Start the threads."""
        for number in range(self.num_threads):
            name = f"tokenspeed-grammar-{number}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> None:
        """Let each thread end after the compile it is in; a long one is not waited for."""
        threads, self._threads = self._threads, []
        self._is_stopped = True
        for _ in threads:
            self._jobs.put(None)
        start = time.monotonic()
        for thread in threads:
            waited = 0.0
            while thread.is_alive() and waited < END_WAIT_S:
                if thread.native_id in self._compiling and waited >= STOP_WAIT_S:
                    break
                thread.join(STEP_S)
                waited = time.monotonic() - start

    def submit(self, job: CompileJob) -> None:
        """Queue a compile."""
        self._jobs.put(job)

    def ended(self) -> list[CompileJob]:
        """The jobs that ended since the last call."""
        found: list[CompileJob] = []
        while True:
            try:
                found.append(self._ended.get_nowait())
            except queue.Empty:
                return found

    def _work(self) -> None:
        own = threading.get_native_id()
        _give_way(own)
        while (job := self._jobs.get()) is not None and not self._is_stopped:
            # A job that lost its last waiter before it began is nobody's.
            if job.is_wanted():
                job.started_at = self.clock()
                self._compiling.add(own)
                self._run(job)
                self._compiling.discard(own)
            job.done = True
            self._ended.put(job)

    def _run(self, job: CompileJob) -> None:
        try:
            job.compiled = self.compile(job.key)
        except GrammarError as error:
            job.reason = str(error)
        except Exception as error:
            # Whatever a compiler raises for a source is that source's fault, and ends no thread.
            job.reason = f"the compiler failed: {type(error).__name__}: {error}"


def _give_way(thread: int) -> None:
    """Let rounds and forwards come first where cores are few."""
    # Not by more: on a busy machine small compiles would run into their timeout, and one that holds
    # the interpreter would keep it.
    usual = os.getpriority(os.PRIO_PROCESS, thread)
    os.setpriority(os.PRIO_PROCESS, thread, min(LEAST_NICE, usual + NICENESS))
    # A short round would wait for the end of a compile's time slice where both run on one core.
    cores = os.sched_getaffinity(thread)
    if len(cores) > 1:
        os.sched_setaffinity(thread, cores - {min(cores)})
