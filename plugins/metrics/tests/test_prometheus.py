# SPDX-License-Identifier: MIT
"""A real Prometheus scrapes a served real model, and answers with what a load generator counted.

Debian's package `prometheus` has both programs; where they are not on PATH this is left out.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from attrs import define, field

needed = {
    "prometheus is not on PATH": shutil.which("prometheus") and shutil.which("promtool"),
    "tokenspeed-openai is not installed": importlib.util.find_spec("tokenspeed_openai"),
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    *(pytest.mark.skipif(not found, reason=reason) for reason, found in needed.items()),
]

MODEL = "smollm2-135m"
LIMIT_S = 90.0
CONFIG = """global: {{scrape_interval: 2s, scrape_timeout: 2s}}
scrape_configs:
- job_name: engine
  static_configs: [{{targets: ["{target}"]}}]
"""
# What promtool says of names that dashboards for such engines expect.
EXPECTED = ("metric names should not contain ':'", 'should not have "_total" suffix')


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {LIMIT_S} s"
        time.sleep(0.1)


@define
class Load:
    """A load generator, which counts what it asks and gets."""

    url: str
    requests: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    first_tokens_s: list[float] = field(factory=list)

    def send(self, prompt: str, *, max_tokens: int) -> http.client.HTTPConnection:
        """A connection over which a stream was asked for, and nothing read yet."""
        body = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
        body |= {"stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True}
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=LIMIT_S)
        headers = {"content-type": "application/json"}
        connection.request("POST", "/v1/completions", json.dumps(body), headers)
        return connection

    def ask(self, prompt: str) -> None:
        """A request, to its end."""
        began = time.monotonic()
        connection = self.send(prompt, max_tokens=12)
        with connection.getresponse() as stream:
            first = stream.readline()
            self.first_tokens_s.append(time.monotonic() - began)
            lines = [first, *stream]
        events = [line.removeprefix(b"data: ") for line in lines if line.startswith(b"data: {")]
        usage = json.loads(events[-1])["usage"]
        self.requests += 1
        self.prompt_tokens += usage["prompt_tokens"]
        self.output_tokens += usage["completion_tokens"]
        self.cached_tokens += (usage["prompt_tokens_details"] or {}).get("cached_tokens", 0)


@define
class Asked:
    """A Prometheus that scrapes the engine."""

    port: int

    def value(self, query: str) -> float | None:
        """What it answers to a query that has one value, or none."""
        words = urllib.parse.urlencode({"query": query})
        url = f"http://127.0.0.1:{self.port}/api/v1/query?{words}"
        with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            result = json.load(answer)["data"]["result"]
        return float(result[0]["value"][1]) if result else None

    def is_up(self) -> bool:
        """Whether it has scraped the engine."""
        try:
            return self.value("up") == 1
        except OSError:
            return False

    def comes_to(self, query: str, expected: float) -> bool:
        """Whether it answers this within some scrapes."""
        wait_for(lambda: self.value(query) == expected)
        return True


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """The address of a served model of which two requests run at a time."""
    flags = ["--port", "0", "--json", "--plugins", "metrics", "--page-size", "16"]
    flags += ["--max-batch-size", "2", "--metrics-aliases", "vllm"]
    command = [sys.executable, "-m", "tokenspeed_core", "serve", MODEL, *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    told = (json.loads(line) for line in process.stdout)
    yield next(event["url"] for event in told if event["event"] == "ready")
    process.terminate()
    assert process.wait(LIMIT_S) == 0


@pytest.fixture(scope="module")
def asked(url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    """A Prometheus that has scraped it."""
    folder: Path = tmp_path_factory.mktemp("prometheus")
    (folder / "config.yml").write_text(CONFIG.format(target=url.removeprefix("http://")))
    started = Asked(free_port())
    flags = {
        "config.file": folder / "config.yml",
        "storage.tsdb.path": folder / "data",
        "web.listen-address": f"127.0.0.1:{started.port}",
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["prometheus", *(f"--{name}={value}" for name, value in flags.items())],
            stdout=log,
            stderr=log,
        )
    try:
        wait_for(started.is_up)
        yield started
    finally:
        process.terminate()
        process.wait(LIMIT_S)


def test_what_was_counted_is_answered(url: str, asked: Asked) -> None:
    """After some repeated prompts, some at once, each sum is exactly the generator's, and first
    tokens came no later than their clients saw them."""
    load = Load(url)
    prompts = [f"{topic} was, in the last century, a thing of which " * 3 for topic in "ABCDE"]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(load.ask, prompts * 3))
    expected = {
        "tokenspeed:num_requests_total": load.requests,
        "tokenspeed:request_success_total": 15,
        "tokenspeed:prompt_tokens_total": load.prompt_tokens,
        "tokenspeed:generation_tokens_total": load.output_tokens,
        "tokenspeed:prefix_cache_hits_total": load.cached_tokens,
        "tokenspeed:prefix_cache_queries_total": load.prompt_tokens,
        "tokenspeed:time_to_first_token_seconds_count": 15,
        "tokenspeed:e2e_request_latency_seconds_count": 15,
        "tokenspeed:inter_token_latency_seconds_count": load.output_tokens - 15,
        'vllm:request_success_total{finished_reason="length"}': 15,
        "tokenspeed:num_requests_running": 0,
        "tokenspeed:num_requests_waiting": 0,
    }
    assert all(asked.comes_to(query, value) for query, value in expected.items())
    assert load.cached_tokens > 0
    seconds = asked.value("tokenspeed:time_to_first_token_seconds_sum")
    assert seconds is not None
    assert 0 < seconds <= sum(load.first_tokens_s)
    quantile = "histogram_quantile(0.5, tokenspeed:time_to_first_token_seconds_bucket)"
    median = asked.value(quantile)
    assert median is not None
    assert median > 0


def test_what_runs_and_waits_is_answered(url: str, asked: Asked) -> None:
    """Of four streams two run and two wait, as long as they do; left, they are aborts."""
    load = Load(url)
    opened = [load.send(f"Once {number}", max_tokens=2000) for number in range(4)]
    for query in ("running", "waiting"):
        assert asked.comes_to(f"tokenspeed:num_requests_{query}", 2)
        assert asked.comes_to(f"vllm:num_requests_{query}", 2)
    assert (asked.value("tokenspeed:kv_cache_usage_perc") or 0) > 0
    for connection in opened:
        connection.close()
    assert asked.comes_to("tokenspeed:num_requests_running", 0)
    assert asked.comes_to('tokenspeed:num_requests_ended_total{reason="abort"}', 4)


def test_promtool_has_nothing_to_say_but_what_was_decided(url: str) -> None:
    """Every line of `promtool check metrics` on the page is of a kind that we know."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=LIMIT_S) as answer:
        page = answer.read()
    command = ["promtool", "check", "metrics"]
    done = subprocess.run(command, input=page, capture_output=True, check=False)
    said = (done.stdout + done.stderr).decode().splitlines()
    assert done.returncode in (0, 3)  # 3: there are remarks; 1: the page cannot be read
    assert [line for line in said if not line.endswith(EXPECTED)] == []
