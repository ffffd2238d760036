# SPDX-License-Identifier: MIT
"""The operators' commands, against a server that answers as it is told."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

from tokenspeed_core.cli.running_server import RunningServer
from tokenspeed_core.cli.top import watch

Run = Callable[..., Any]


@define
class ScriptedServer:
    """Answers every request alike, and remembers them."""

    url: str = ""
    status: int = 200
    answer: Any = field(factory=lambda: replies([True, ""]))
    paths: list[str] = field(factory=list)
    bodies: list[Any] = field(factory=list)
    keys: list[str | None] = field(factory=list)


def replies(*given: list[Any], values: dict[str, Any] | None = None) -> dict[str, Any]:
    """What the endpoints return: success and message of each engine."""
    return {
        "replies": [
            {"success": success, "message": message, "values": values or {}}
            for success, message in given
        ]
    }


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """A server on a free port."""
    scripted = ScriptedServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(None)

        def do_POST(self) -> None:
            self._answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

        def _answer(self, body: Any) -> None:
            scripted.paths.append(f"{self.command} {self.path}")
            scripted.bodies.append(body)
            scripted.keys.append(self.headers["Authorization"])
            content = json.dumps(scripted.answer).encode()
            self.send_response(scripted.status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        scripted.url = f"http://127.0.0.1:{http.server_port}"
        yield scripted
        http.shutdown()
        thread.join()


ASKED: dict[str, tuple[list[str], str, Any]] = {
    "pause": (["pause"], "pause", {"mode": "abort"}),
    "pause and keep": (["pause", "--mode", "keep"], "pause", {"mode": "keep"}),
    "resume": (["resume"], "resume", {}),
    "flush": (["flush"], "flush_cache", {}),
    "release": (["release"], "release_memory", {}),
    "release some": (
        ["release", "--tags", "kv_cache, x"],
        "release_memory",
        {"tags": ["kv_cache", "x"]},
    ),
    "wake": (["wake", "--tags", "weights"], "resume_memory", {"tags": ["weights"]}),
    "weights": (
        ["weights", "org/model", "--version", "2"],
        "update_weights_from_disk",
        {"model_path": "org/model", "flush_cache": True, "weight_version": "2"},
    ),
    "weights and keep": (
        ["weights", "org/model", "--keep-cache"],
        "update_weights_from_disk",
        {"model_path": "org/model", "flush_cache": False},
    ),
    "profile": (["profile", "stop"], "profile", {"type": "stop"}),
    "profile some": (
        ["profile", "start", "--steps", "3", "--folder", "a"],
        "profile",
        {"type": "start", "num_steps": 3, "output_dir": "a"},
    ),
}


@pytest.mark.parametrize("case", ASKED)
def test_a_command_asks_for_its_operation(run: Run, server: ScriptedServer, case: str) -> None:
    """One POST to the operation's endpoint, with the flags as its body."""
    arguments, path, body = ASKED[case]
    ran = run(*arguments, "--url", server.url)
    assert (ran.code, ran.err) == (0, "")
    assert (server.paths, server.bodies) == ([f"POST /engine/{path}"], [body])


def test_what_was_done_is_one_line(run: Run, server: ScriptedServer) -> None:
    """The line tells the effect, and what the engines added."""
    server.answer = replies([True, "3 requests"], [True, "3 requests"])
    ran = run("pause", "--mode", "wait", "--url", server.url)
    assert ran.out == "paused; running requests came to their end; 3 requests\n"


def test_a_refusal_is_code_1_with_its_text(run: Run, server: ScriptedServer) -> None:
    """The engines that refused are named where there are several."""
    server.answer = replies([True, ""], [False, "a pause is already in progress"])
    ran = run("pause", "--url", server.url)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "tokenspeed: pause: engine 1: a pause is already in progress\n"


@pytest.mark.parametrize(("success", "code"), [(True, 0), (False, 1)])
def test_json_is_the_replies(run: Run, server: ScriptedServer, success: bool, code: int) -> None:
    """--json prints what the engines answered, refusals as well; the code tells them apart."""
    server.answer = replies([success, "text"], values={"is_paused": True})
    ran = run("pause", "--json", "--url", server.url)
    assert (ran.code, json.loads(ran.out)) == (code, server.answer)


def test_replies_count_whatever_the_status(run: Run, server: ScriptedServer) -> None:
    """An engine's refusal may come with a status of its own."""
    server.status, server.answer = 409, replies([False, "memory is released"])
    ran = run("resume", "--url", server.url)
    assert (ran.code, ran.err) == (1, "tokenspeed: resume: memory is released\n")


def test_an_error_body_is_told(run: Run, server: ScriptedServer) -> None:
    """The server's own error is shown with its status."""
    server.status, server.answer = 400, {"error": {"message": "mode: unknown"}}
    ran = run("pause", "--url", server.url)
    assert ran.code == 1
    assert "mode: unknown (400)" in ran.err


def test_the_key_goes_along(
    run: Run, server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key comes from the flag, else from the environment, and is asked for when it is missing."""
    run("flush", "--url", server.url, "--key", "a")
    monkeypatch.setenv("TOKENSPEED_KEY", "b")
    run("flush", "--url", server.url)
    server.status = 401
    ran = run("flush", "--url", server.url)
    assert server.keys[:2] == ["Bearer a", "Bearer b"]
    assert ran.code == 1
    assert "wants a key" in ran.err


def test_no_server_is_said_so(run: Run) -> None:
    """A port nobody listens at is code 1, with what to do about it."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
    ran = run("flush", "--url", url)
    assert ran.code == 1
    assert f"no server answers at {url} (Connection refused)" in ran.err


def test_another_kind_of_server_is_noticed(run: Run, server: ScriptedServer) -> None:
    """An answer without replies is not one of ours."""
    server.answer = {"status": "ok"}
    ran = run("flush", "--url", server.url)
    assert ran.code == 1
    assert "is this a tokenspeed server?" in ran.err


WRONG = {
    "mode": (["pause", "--mode", "stop"], "invalid choice: 'stop'"),
    "type": (["profile", "begin"], "invalid choice: 'begin'"),
    "no path": (["weights"], "required: PATH"),
    "url": (["flush", "--url", "localhost:1"], "--url: expected a URL"),
    "flag": (["wake", "--tag", "x"], "--tag"),
    "interval": (["top", "--interval", "0"], "--interval: expected at least"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_usage_is_code_2(run: Run, case: str) -> None:
    """Nothing is asked of any server."""
    arguments, said = WRONG[case]
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


def test_weights_of_this_folder_are_named_in_full(
    run: Run, server: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server runs elsewhere, so a path that exists here is sent as an absolute one."""
    (tmp_path / "new").mkdir()
    monkeypatch.chdir(tmp_path)
    run("weights", "new", "--url", server.url)
    assert server.bodies[0]["model_path"] == str(tmp_path / "new")


DESCRIBED = {
    "model": {"name": "m"},
    "state": {"name": "paused", "draining": "pause", "released": []},
    "sizes": {"waiting": 3, "prefilling": 1, "decoding": 4, "active_pages": 8, "total_pages": 32},
    "counters": {"completion_tokens": 7},
}


def test_top_shows_each_engine_once(run: Run, server: ScriptedServer) -> None:
    """--once --json is one object with an entry an engine."""
    server.answer = replies([True, ""], [True, ""], values=DESCRIBED)
    ran = run("top", "--once", "--json", "--url", server.url)
    first, second = json.loads(ran.out)["engines"]
    assert server.paths == ["GET /engine/describe"]
    assert first == {**second, "engine": 0}
    assert (first["state"], first["running"]) == ("paused, draining for pause", 5)


def test_top_is_a_table_for_people(run: Run, server: ScriptedServer) -> None:
    """Without a terminal the table is printed."""
    server.answer = replies([True, ""], values=DESCRIBED)
    ran = run("top", "--once", "--url", server.url)
    assert "25% (8/32)" in ran.out


def test_top_tells_cache_hits_by_tier(run: Run, server: ScriptedServer) -> None:
    """Shares of all prompt tokens: of all hits, and of each tier's where it was not only one."""
    counters = {"completion_tokens": 7, "prompt_tokens": 200, "cached_tokens": 100}
    on_device = counters | {"cached_tokens_device": 100}
    server.answer = replies([True, ""], values={**DESCRIBED, "counters": on_device})
    shown = run("top", "--once", "--url", server.url).out
    assert "hits 50%" in shown
    assert "device" not in shown
    tiers = {"cached_tokens_device": 20, "cached_tokens_host": 50, "cached_tokens_far": 30}
    server.answer = replies([True, ""], values={**DESCRIBED, "counters": counters | tiers})
    (engine,) = json.loads(run("top", "--once", "--json", "--url", server.url).out)["engines"]
    assert engine["cache_hits"] == {"all": 0.5, "device": 0.1, "host": 0.25, "far": 0.15}


def test_top_names_what_is_released_once(run: Run, server: ScriptedServer) -> None:
    """The state and the memory are one phrase."""
    state = {"name": "released", "draining": None, "released": ["kv_cache"]}
    server.answer = replies([True, ""], values={**DESCRIBED, "state": state})
    (engine,) = json.loads(run("top", "--once", "--json", "--url", server.url).out)["engines"]
    assert engine["state"] == "released kv_cache"


def test_speed_is_counted_between_two_looks(server: ScriptedServer) -> None:
    """Tokens a second need an earlier count; an engine that started anew has drawn none since."""
    looks = watch(RunningServer(server.url), interval_s=0.0)
    counts = (10, 50, 3)
    speeds = []
    for count in counts:
        counted = {**DESCRIBED, "counters": {"completion_tokens": count}}
        server.answer = replies([True, ""], values=counted)
        speeds.append(next(looks)[0].tokens_per_s)
    assert speeds[0] is None
    assert speeds[1] is not None
    assert speeds[1] > 0
    assert speeds[2] == 0.0
