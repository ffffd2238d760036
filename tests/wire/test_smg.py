# SPDX-License-Identifier: MIT
"""The unmodified SMG gateway in front of our engine, and the real model behind it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from attrs import define, field

from tokenspeed_core.assembly import compose
from tokenspeed_core.completion import Completion
from tokenspeed_core.engine import LocalEngine
from tokenspeed_core.models.resolve import resolve_model
from tokenspeed_hookspecs import LogprobOptions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

MODEL = "smollm2-135m"
PROMPT = "The capital of France is"
MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
LIMIT_S = 90.0
HEADERS = {"content-type": "application/json"}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@define
class Pair:
    """A gateway and an engine that can be started and killed apart."""

    folder: Path
    model_path: Path
    port: int = field(factory=free_port)
    gateway: subprocess.Popen[bytes] | None = None
    engine: subprocess.Popen[bytes] | None = None

    def start_gateway(self) -> None:
        """Start the gateway."""
        flags = {
            "--backend": "tokenspeed",
            "--worker-urls": f"ipc://{self.folder}/run/e",
            "--host": "127.0.0.1",
            "--port": self.port,
            "--prometheus-port": free_port(),
            "--model-path": self.model_path,
            "--health-check-interval-secs": 1,
            "--load-monitor-interval": 1,
        }
        words = [str(word) for pair in flags.items() for word in pair]
        self.gateway = self._start("smg", "launch", *words, "--disable-circuit-breaker")

    def start_engine(self) -> None:
        """Start the engine's command, which watches the engine's own process."""
        gateway = f"ipc://{self.folder}/run/e"
        self.engine = self._start("tokenspeed", "engine", "--gateway", gateway, "--model", MODEL)

    def kill_engine(self) -> None:
        """Kill the engine's own process; its command tells of it and ends."""
        assert self.engine is not None
        for child in psutil.Process(self.engine.pid).children(recursive=True):
            child.send_signal(signal.SIGKILL)
        self.engine.wait(LIMIT_S)

    def kill_gateway(self) -> None:
        """Kill the gateway."""
        assert self.gateway is not None
        self.gateway.kill()
        self.gateway.wait(LIMIT_S)

    def open(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The open answer to a GET, or to a POST where there is a body."""
        data = None
        if body is not None:
            data = json.dumps({"model": str(self.model_path), **body}).encode()
        url = f"http://127.0.0.1:{self.port}{path}"
        return urllib.request.urlopen(urllib.request.Request(url, data, HEADERS), timeout=LIMIT_S)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The parsed answer to a request, or the list of a stream's events."""
        with self.open(path, body) as answer:
            if not body.get("stream"):
                return json.load(answer)
            lines = [line.removeprefix(b"data: ").strip() for line in answer if line.strip()]
        assert lines.pop() == b"[DONE]"
        return [json.loads(line) for line in lines]

    def token_usage(self) -> float:
        """How much of its cache the engine said that it uses."""
        with self.open("/get_loads") as answer:
            [load] = json.load(answer)["loads"]
        return float(load["token_usage"])

    def answers(self) -> bool:
        """Whether a request gets through to an engine."""
        try:
            self.post("/v1/completions", {"prompt": "a", "max_tokens": 1})
        except OSError:  # refused, reset, or an HTTP status that is an error
            return False
        return True

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until it holds."""
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {LIMIT_S} s: {self.logs()}")
            time.sleep(0.1)

    def logs(self) -> str:
        """What both said."""
        return (self.folder / "log").read_text()[-4000:]

    def close(self) -> None:
        """End both; the gateway would take its time."""
        if self.engine is not None:
            self.engine.terminate()
            self.engine.wait(LIMIT_S)
        if self.gateway is not None:
            self.kill_gateway()

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                command, stdout=log, stderr=log, env={**os.environ, "PATH": path}
            )


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    """A gateway and an engine that answer."""
    with tempfile.TemporaryDirectory(prefix="ts") as folder:
        started = Pair(Path(folder), resolve_model(MODEL).path)
        started.start_gateway()
        started.start_engine()
        try:
            started.wait_for(started.answers)
            yield started
        finally:
            started.close()


@pytest.fixture(scope="module")
def local() -> Iterator[LocalEngine]:
    """The same model in this process."""
    with compose(MODEL) as engine:
        yield engine


def greedy(local: LocalEngine) -> Completion:
    """What the model says to the prompt."""
    return local.generate(PROMPT, max_new_tokens=12, temperature=0.0, logprobs=LogprobOptions())


def test_a_completion_is_the_engines(pair: Pair, local: LocalEngine) -> None:
    """A completion through the gateway has the text and the counts of our own engine's."""
    expected = greedy(local)
    answer = pair.post("/v1/completions", {"prompt": PROMPT, "max_tokens": 12, "temperature": 0})
    [choice] = answer["choices"]
    assert (choice["text"], choice["finish_reason"]) == (expected.text, "length")
    assert answer["usage"]["prompt_tokens"] == expected.usage.prompt_tokens
    assert answer["usage"]["completion_tokens"] == 12


def test_tokens_and_logprobs_are_the_engines(pair: Pair, local: LocalEngine) -> None:
    """The gateway hands on the greedy tokens and their logprobs."""
    expected = greedy(local)
    sampling = {"max_new_tokens": 12, "temperature": 0}
    body = {"text": PROMPT, "sampling_params": sampling, "return_logprob": True}
    [answer] = pair.post("/generate", body)
    assert answer["output_ids"] == expected.token_ids
    logprobs = [value for value, *_ in answer["meta_info"]["output_token_logprobs"]]
    assert logprobs == pytest.approx(expected.logprobs, abs=1e-3)


def test_a_streamed_chat_is_the_engines(pair: Pair, local: LocalEngine) -> None:
    """A chat streamed through the gateway has the text and the logprobs of our own engine's."""
    stream = local.chat(MESSAGES, max_new_tokens=12, temperature=0.0, logprobs=LogprobOptions())
    expected = stream.completion()
    assert expected.logprobs is not None
    # Of a chat's ending token, which has no text, the gateway tells no logprob.
    count = len(expected.logprobs) - (expected.finish_reason == "stop")
    body = {"messages": MESSAGES, "max_tokens": 12, "temperature": 0, "logprobs": True}
    events = pair.post("/v1/chat/completions", {**body, "stream": True})
    choices = [choice for event in events for choice in event["choices"]]
    assert "".join(choice["delta"].get("content") or "" for choice in choices) == expected.text
    scored = [each for c in choices for each in (c.get("logprobs") or {}).get("content") or ()]
    assert [each["logprob"] for each in scored] == pytest.approx(
        expected.logprobs[:count], abs=1e-3
    )
    assert choices[-1]["finish_reason"] == expected.finish_reason


def test_an_unclaimed_wish_is_refused(pair: Pair) -> None:
    """A constraint that no plugin serves ends its request, and is not ignored."""
    sampling = {"max_new_tokens": 4, "regex": "a+"}
    [answer] = pair.post("/generate", {"text": "hi", "sampling_params": sampling})
    assert (answer["meta_info"]["finish_reason"], answer["output_ids"]) == ("abort", [])


def test_a_dropped_stream_frees_the_engine(pair: Pair) -> None:
    """When a client leaves its stream, the engine is told and holds no pages for it any more."""
    body = {"prompt": PROMPT, "max_tokens": 4000, "ignore_eos": True, "stream": True}
    with pair.open("/v1/completions", body):
        pair.wait_for(lambda: pair.token_usage() > 0)
    pair.wait_for(lambda: pair.token_usage() == 0)


def test_a_killed_engine_is_replaced(pair: Pair, local: LocalEngine) -> None:
    """After an engine was killed, the next one serves behind the same gateway."""
    pair.kill_engine()
    pair.start_engine()
    pair.wait_for(pair.answers)
    test_a_completion_is_the_engines(pair, local)


def test_a_killed_gateway_is_replaced(pair: Pair, local: LocalEngine) -> None:
    """After a gateway was killed, the next one is served by the same engine."""
    pair.kill_gateway()
    pair.start_gateway()
    pair.wait_for(pair.answers)
    test_a_completion_is_the_engines(pair, local)
