# SPDX-License-Identifier: MIT
"""Every way through the states of a key."""

from __future__ import annotations

from tokenspeed_grammar.cache import Failure, Found, GrammarCache
from tokenspeed_grammar.keys import GrammarKey
from tokenspeed_grammar.pool import CompileJob
from tokenspeed_grammar.testing import MAX_RETRIES, TIMEOUT_S, CacheBench, NamedGrammar

KEY = GrammarKey("regex", "a")
OTHER = GrammarKey("regex", "b")


def _time_out(bench: CacheBench) -> Failure:
    """Let a compile of the key time out; what is known then."""
    bench.cache.look_up(KEY)
    bench.cache.time_out(KEY)
    return _failure(bench.cache.known(KEY))


def _failure(found: Found | None) -> Failure:
    assert isinstance(found, Failure)
    return found


def _looked_up(cache: GrammarCache, key: GrammarKey = KEY) -> Found:
    cache.collect()
    return cache.look_up(key)


def test_a_key_compiles_once(bench: CacheBench) -> None:
    """However often it is looked up, an absent key starts one compile."""
    jobs = [bench.cache.look_up(KEY) for _ in range(100)]
    assert bench.pool.jobs == [jobs[0]]
    assert bench.cache.num_compiling == 1


def test_a_compiled_key_is_ready(bench: CacheBench) -> None:
    """What a compile gave is there for everybody, without another compile."""
    bench.cache.look_up(KEY)
    bench.pool.end(KEY)
    assert _looked_up(bench.cache) == NamedGrammar("a")
    assert len(bench.pool.jobs) == 1


def test_a_refused_key_stays_refused(bench: CacheBench) -> None:
    """The compiler's reason is kept for good."""
    bench.cache.look_up(KEY)
    bench.pool.end(KEY, reason="unclosed")
    bench.clock.now += 100 * TIMEOUT_S
    assert _looked_up(bench.cache) == Failure("unclosed", is_permanent=True)


def test_a_timeout_holds_for_one_timeout(bench: CacheBench) -> None:
    """Until then the key fails at once; after it, it compiles again."""
    failure = _time_out(bench)
    assert not failure.is_permanent
    assert "timed out after 10.0s: key=('regex', \"a\")" in failure.reason
    bench.clock.now += TIMEOUT_S - 1
    assert bench.cache.look_up(KEY) is failure
    bench.clock.now += 1
    assert isinstance(bench.cache.look_up(KEY), CompileJob)


def test_a_compile_that_still_runs_is_joined(bench: CacheBench) -> None:
    """After a timeout's time, a key whose compile did not end takes no second thread."""
    _time_out(bench)
    bench.clock.now += TIMEOUT_S
    assert bench.cache.look_up(KEY) is bench.pool.jobs[0]
    assert len(bench.pool.jobs) == 1


def test_a_late_end_does_not_replace_a_timeout_that_holds(bench: CacheBench) -> None:
    """Clients were told that it failed; what came late is there once that time is over."""
    failure = _time_out(bench)
    bench.pool.end(KEY)
    assert _looked_up(bench.cache) is failure
    bench.clock.now += TIMEOUT_S
    assert _looked_up(bench.cache) == NamedGrammar("a")
    assert len(bench.pool.jobs) == 1


def test_an_end_after_the_timeouts_time_is_ready(bench: CacheBench) -> None:
    """A compile that ends when its timeout does not hold any more counts at once."""
    _time_out(bench)
    bench.clock.now += TIMEOUT_S
    bench.pool.end(KEY)
    assert _looked_up(bench.cache) == NamedGrammar("a")


def test_too_many_timeouts_give_up(bench: CacheBench) -> None:
    """One timeout more than the retries makes the failure the client's, for good."""
    for _ in range(MAX_RETRIES):
        assert not _time_out(bench).is_permanent
        bench.clock.now += TIMEOUT_S
    failure = _time_out(bench)
    assert failure.is_permanent
    assert "gave up after 3 timeouts" in failure.reason
    assert "timed out" in failure.reason


def test_a_compile_that_ends_well_forgets_timeouts(bench: CacheBench) -> None:
    """The count begins anew."""
    for _ in range(MAX_RETRIES):
        _time_out(bench)
        bench.clock.now += TIMEOUT_S
    bench.cache.look_up(KEY)
    bench.pool.end(KEY)
    bench.cache.collect()
    assert bench.cache._timeouts == {}


def test_a_timeout_of_a_ready_key_is_ignored(bench: CacheBench) -> None:
    """Of a compile that ended meanwhile nothing bad is remembered."""
    bench.cache.look_up(KEY)
    bench.pool.end(KEY)
    bench.cache.collect()
    bench.cache.time_out(KEY)
    assert bench.cache.known(KEY) == NamedGrammar("a")


def test_the_least_recently_used_are_dropped() -> None:
    """Over its limit the cache forgets what was not looked up for longest."""
    bench = CacheBench(limit_bytes=2500)
    for key in (KEY, OTHER):
        bench.cache.look_up(key)
        bench.pool.end(key)
        bench.cache.collect()
    bench.cache.look_up(KEY)
    third = GrammarKey("regex", "c")
    bench.cache.look_up(third)
    bench.pool.end(third)
    bench.cache.collect()
    assert [bench.cache.known(key) is None for key in (KEY, OTHER, third)] == [False, True, False]
    assert bench.cache.size_bytes == 2002


def test_what_is_waited_for_is_kept() -> None:
    """A grammar that a request waits for is not dropped for another one."""
    bench = CacheBench(limit_bytes=1500)
    bench.cache.wait(KEY)
    for key in (KEY, OTHER):
        bench.cache.look_up(key)
        bench.pool.end(key)
        bench.cache.collect()
    assert bench.cache.known(KEY) == NamedGrammar("a")


def test_a_compile_nobody_waits_for_is_not_begun(bench: CacheBench) -> None:
    """The last waiter that leaves takes the queued compile along."""
    for _ in range(2):
        bench.cache.wait(KEY)
    bench.cache.look_up(KEY)
    (job,) = bench.pool.jobs
    bench.cache.stop_waiting(KEY)
    assert job.is_wanted()
    bench.cache.stop_waiting(KEY)
    assert not job.is_wanted()


def test_a_dropped_compile_leaves_the_key_absent(bench: CacheBench) -> None:
    """A key whose compile was dropped compiles when it is asked for again."""
    bench.cache.look_up(KEY)
    (job,) = bench.pool.jobs
    bench.pool.end(KEY, reason="")
    job.compiled = None
    bench.cache.collect()
    assert bench.cache.known(KEY) is None
