# SPDX-License-Identifier: MIT
"""The `openai` client against `tokenspeed serve smollm2-135m`: two processes and a real model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import psutil
import pytest
from attrs import frozen

from tokenspeed_core import compose

MODEL = "smollm2-135m"
PROMPT = "The capital of France is"
GREEDY: dict[str, Any] = {"model": MODEL, "temperature": 0.0}
pytestmark = pytest.mark.slow


@frozen
class Served:
    """A running `tokenspeed serve`."""

    process: subprocess.Popen[str]
    url: str

    @property
    def client(self) -> Any:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)

    def sizes(self) -> dict[str, int]:
        """How many requests the engine has in each state."""
        replies = httpx2.get(f"{self.url}/engine/describe").json()["replies"]
        sizes: dict[str, int] = replies[0]["values"]["sizes"]
        return sizes


def _start() -> Served:
    command = [sys.executable, "-m", "tokenspeed_core", "serve", MODEL, "--port", "0", "--json"]
    command += ["--num-pages", "129"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = (json.loads(line) for line in process.stdout)
    return Served(process, next(event["url"] for event in told if event["event"] == "ready"))


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    """A server for all tests that leave it as it was."""
    served = _start()
    yield served
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(30) == 0


def test_greedy_tokens_are_the_engines(served: Served) -> None:
    """Over HTTP a greedy completion has the tokens and the text it has in process."""
    create = served.client.completions.create
    wishes = {"prompt": PROMPT, "max_tokens": 24}
    answer = create(**GREEDY, **wishes, extra_body={"return_token_ids": True})
    with compose(MODEL, num_pages=129) as engine:
        expected = engine.generate(PROMPT, max_new_tokens=24, temperature=0.0)
    assert (answer.choices[0].token_ids, answer.choices[0].text) == (
        expected.token_ids,
        expected.text,
    )
    streamed = "".join(event.choices[0].text for event in create(**GREEDY, **wishes, stream=True))
    assert streamed == expected.text


def test_a_chat(served: Served) -> None:
    """A chat is answered, whole, streamed and scored alike."""
    create = served.client.chat.completions.create
    body = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 12, **GREEDY}
    (choice,) = create(**body, logprobs=True, top_logprobs=2).choices
    events = list(create(**body, stream=True))
    assert "".join(event.choices[0].delta.content or "" for event in events) == (
        choice.message.content
    )
    scores = choice.logprobs.content
    assert all(score.top_logprobs[0].logprob >= score.logprob - 1e-6 for score in scores)
    assert scores[0].token == scores[0].top_logprobs[0].token


def test_two_choices_and_a_stop_string(served: Served) -> None:
    """Two greedy choices are the same, and both end before the stop string."""
    answer = served.client.completions.create(
        **GREEDY, prompt="1, 2, 3, 4, 5,", n=2, stop=["8"], max_tokens=40
    )
    assert [(each.text, each.finish_reason) for each in answer.choices] == [(" 6, 7, ", "stop")] * 2


def test_a_seed_repeats_itself(served: Served) -> None:
    """The same seed draws the same text, and two choices of it differ."""
    body: dict[str, Any] = {"model": MODEL, "prompt": PROMPT, "max_tokens": 16, "seed": 11, "n": 2}
    first, second = (served.client.completions.create(**body) for _ in range(2))
    texts = [choice.text for choice in first.choices]
    assert texts == [choice.text for choice in second.choices]
    assert texts[0] != texts[1]


def test_a_dropped_stream_is_released(served: Served) -> None:
    """When a client leaves its stream the engine has nothing more to do."""
    stream = served.client.completions.create(
        **GREEDY, prompt=PROMPT, max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    assert served.sizes()["registered"] == 1
    stream.close()
    for _ in range(200):
        if not served.sizes()["registered"]:
            return
        time.sleep(0.02)
    raise AssertionError(f"the request is still there: {served.sizes()}")


def test_a_killed_engine_ends_its_streams() -> None:
    """When the engine's process is killed, an open stream ends with an error, and so does serve."""
    served = _start()
    stream = served.client.completions.create(
        **GREEDY, prompt=PROMPT, max_tokens=4000, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    (engine,) = [each for each in psutil.Process(served.process.pid).children() if _is_engine(each)]
    os.kill(engine.pid, signal.SIGKILL)
    with pytest.raises(openai.APIError, match="not available"):
        list(stream)
    assert served.process.wait(30) != 0


def _is_engine(process: Any) -> bool:
    return "tokenspeed_core.serving.engine_main" in process.cmdline()
