# SPDX-License-Identifier: MIT
"""The compile threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tokenspeed_grammar.backend import CompiledGrammar, GrammarError
from tokenspeed_grammar.keys import GrammarKey
from tokenspeed_grammar.pool import Compile, CompileJob, CompilePool
from tokenspeed_grammar.testing import NamedGrammar

Start = Callable[..., CompilePool]


def _compile(key: GrammarKey) -> CompiledGrammar:
    if key.source == "bad":
        raise GrammarError("no good")
    if key.source == "broken":
        raise KeyError("inside")
    return NamedGrammar(key.source)


def _job(source: str, *, is_wanted: bool = True) -> CompileJob:
    return CompileJob(GrammarKey("regex", source), lambda: is_wanted)


def _ended(pool: CompilePool, count: int) -> list[CompileJob]:
    found: list[CompileJob] = []
    end = time.monotonic() + 60
    while len(found) < count and time.monotonic() < end:
        found += pool.ended()
        time.sleep(0.001)
    return found


@pytest.fixture
def start() -> Iterator[Start]:
    """Start pools; they are stopped at the end."""
    with ExitStack() as stack:

        def make(threads: int = 1, compiler: Compile = _compile) -> CompilePool:
            pool = CompilePool(compiler, time.monotonic, threads)
            pool.start()
            stack.callback(pool.stop)
            return pool

        yield make


def test_each_job_ends_once(start: Start) -> None:
    """Compiled, refused or failed: a job comes back, and the thread goes on."""
    pool = start()
    for source in ("a", "bad", "broken", "b"):
        pool.submit(_job(source))
    jobs = _ended(pool, 4)
    assert [job.compiled for job in jobs] == [NamedGrammar("a"), None, None, NamedGrammar("b")]
    assert [job.reason for job in jobs[1:3]] == [
        "no good",
        "the compiler failed: KeyError: 'inside'",
    ]
    assert all(job.done and job.started_at is not None for job in jobs)


def test_a_job_nobody_wants_is_not_begun(start: Start) -> None:
    """It comes back without a start, a grammar or a reason."""
    pool = start()
    pool.submit(_job("a", is_wanted=False))
    (job,) = _ended(pool, 1)
    assert (job.started_at, job.compiled, job.reason) == (None, None, "")


def test_a_stuck_compile_takes_one_thread(start: Start) -> None:
    """Others compile on, and stopping does not wait for it."""
    gate = threading.Event()

    def wait_for(key: GrammarKey) -> CompiledGrammar:
        if key.source == "stuck":
            assert gate.wait(timeout=30)
        return NamedGrammar(key.source)

    pool = start(2, wait_for)
    pool.submit(_job("stuck"))
    for number in range(10):
        pool.submit(_job(str(number)))
    assert len(_ended(pool, 10)) == 10
    pool.stop()
    gate.set()


def test_what_is_queued_is_not_begun_after_a_stop(start: Start) -> None:
    """A stop waits for the compile that runs, and for no other."""
    gate, begun = threading.Event(), []

    def slow(key: GrammarKey) -> CompiledGrammar:
        begun.append(key.source)
        assert gate.wait(timeout=30)
        return NamedGrammar(key.source)

    pool = start(1, slow)
    for source in "abc":
        pool.submit(_job(source))
    while not begun:
        time.sleep(0.001)
    threading.Timer(0.1, gate.set).start()
    pool.stop()
    assert begun == ["a"]
    assert [job.key.source for job in _ended(pool, 1)] == ["a"]
