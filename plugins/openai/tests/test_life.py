# SPDX-License-Identifier: MIT
"""Clients that leave, engines that die, servers that stop."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest

COMPLETIONS = "/v1/completions"
LONG = {"prompt": "hi", "max_tokens": 400}


@contextlib.contextmanager
def _streaming(site: Any, **changes: Any) -> Iterator[Iterator[str]]:
    """The lines of a stream whose first has come."""
    body = {**LONG, "stream": True, **changes}
    with site.http() as http, http.stream("POST", COMPLETIONS, json=body) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: {")
        yield lines


def _ids(site: Any, count: int) -> list[str]:
    return [request.request_id for request in site.client.sent[-count:]]


@pytest.mark.parametrize("n", [1, 3])
def test_a_dropped_stream_is_aborted(site: Any, n: int) -> None:
    """When a client leaves a stream, every choice of it ends in the engine."""
    with _streaming(site, n=n):
        pass
    site.until(lambda: site.tokens_given.keys() >= {*_ids(site, n)})
    assert max(site.tokens_given[each] for each in _ids(site, n)) < 400
    assert site.get("/stats").json()["counters"]["open_choices"] == 0


def test_the_openai_client_can_leave(site: Any) -> None:
    """Closing a stream of the `openai` client aborts its request."""
    stream = site.openai().completions.create(model="scripted", stream=True, **LONG)
    next(iter(stream))
    stream.close()
    (request_id,) = _ids(site, 1)
    site.until(lambda: request_id in site.tokens_given)
    assert site.tokens_given[request_id] < 400


def test_a_client_that_does_not_wait(start: Any) -> None:
    """A request is aborted too when its client leaves before the first token, or never streamed."""
    site = start(plane={"forward_ms": 300.0})
    for stream in (True, False):
        with site.http(timeout_s=0.1) as http, pytest.raises(httpx2.TimeoutException):
            http.post(COMPLETIONS, json={**LONG, "stream": stream, "request_id": f"r{stream}"})
    site.until(lambda: {"rTrue", "rFalse"} <= site.tokens_given.keys())
    assert max(site.tokens_given.values()) < 10


def test_others_go_on_when_a_client_leaves(site: Any) -> None:
    """A dropped stream takes nothing from the one beside it."""
    with _streaming(site) as lines:
        with _streaming(site):
            pass
        assert [*lines][-2] == "data: [DONE]"


def test_an_engine_that_died_is_a_503(start: Any) -> None:
    """After an engine's end requests get a 503 at once, and the health check fails."""
    site = start()
    site.engine.stop()
    health = site.get("/health")
    assert (health.status_code, health.json()["status"]) == (503, "failed")
    with pytest.raises(openai.InternalServerError) as refused:
        site.openai().completions.create(model="scripted", **LONG)
    assert refused.value.code == "engine_unavailable"
    assert site.get("/ping").status_code == 200


def test_an_engine_that_dies_ends_its_streams(start: Any) -> None:
    """An open stream gets an error as its last event when the engine dies."""
    site = start()
    with _streaming(site, n=2) as lines:
        site.engine.stop()
        told = [line for line in lines if line]
    assert '"code":"engine_unavailable"' in told[-1]
    assert "data: [DONE]" not in told


def test_the_openai_client_is_told(start: Any) -> None:
    """The `openai` client raises what a stream's last event says."""
    site = start()
    stream = site.openai().completions.create(model="scripted", stream=True, **LONG)
    next(iter(stream))
    site.engine.stop()
    with pytest.raises(openai.APIError, match="not available"):
        list(stream)


def test_what_waits_is_told_as_well(start: Any) -> None:
    """A request that is not streamed gets a 503 when the engine dies under it."""
    site = start(plane={"forward_ms": 20.0})
    killer = threading.Timer(0.3, site.engine.stop)
    killer.start()
    assert site.post(COMPLETIONS, LONG).status_code == 503
    killer.join()


def test_a_pause_ends_requests_with_what_they_have(start: Any) -> None:
    """A request that an operator aborts ends with its text so far and the reason."""
    site = start(admin_key="key")
    with _streaming(site) as lines:
        assert site.post("/engine/pause", {"mode": "abort"}, "key").status_code == 200
        told = [line for line in lines if line]
    assert '"finish_reason":"abort"' in told[-2]
    assert "pause" in told[-2]


def test_a_server_stops_when_its_requests_have_ended(start: Any) -> None:
    """Stopping a server lets a running stream come to its end."""
    site = start()
    with _streaming(site) as lines:
        stopping = threading.Thread(target=site.stop)
        stopping.start()
        assert [*lines][-2] == "data: [DONE]"
    stopping.join()
    with pytest.raises(httpx2.ConnectError):
        site.get("/ping")


def test_a_server_does_not_wait_for_ever(start: Any) -> None:
    """A stream that outlives the time of grace ends with an error, and its request is aborted."""
    site = start(drain_timeout_s=0.1, plane={"forward_ms": 20.0})
    with _streaming(site) as lines:
        site.stop()
        told = [line for line in lines if line]
    assert "the server is stopping" in told[-1]
    assert "data: [DONE]" not in told
    site.until(lambda: len(site.tokens_given) == 1)
    assert max(site.tokens_given.values()) < 400


def test_what_waits_is_told_that_the_server_stops(start: Any) -> None:
    """A request that is not streamed and outlives the time of grace gets a 503."""
    site = start(drain_timeout_s=0.1, plane={"forward_ms": 20.0})
    stopping = threading.Timer(0.3, site.stop)
    stopping.start()
    answer = site.post(COMPLETIONS, LONG)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_unavailable")
    stopping.join()


def test_no_connection_outlives_its_client(site: Any) -> None:
    """Many streams that come and go leave no request and no choice behind."""
    for _ in range(20):
        with _streaming(site):
            pass
    site.until(lambda: site.engine.state.running + site.engine.state.waiting == 0)
    assert site.get("/stats").json()["counters"]["open_choices"] == 0
