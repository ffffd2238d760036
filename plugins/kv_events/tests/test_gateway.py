# SPDX-License-Identifier: MIT
"""The unmodified SMG gateway follows the events of two engines and knows nothing else of them.

Engines are scripted; TOKENSPEED_GATEWAY_MODEL names a model to run instead.
"""

from __future__ import annotations

import importlib.util
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

from tokenspeed_core.models.resolve import resolve_model
from tokenspeed_core.testing.small_tokenizer import save_small_tokenizer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(importlib.util.find_spec("smg") is None, reason="smg is not installed"),
]

LIMIT_S = 90.0
PAGE = 16
MODEL = os.environ.get("TOKENSPEED_GATEWAY_MODEL")
VOCABULARY = 2048
SERVICER = Path(__file__).parents[3] / "examples" / "smg_worker.py"


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in servers]
    for server in servers:
        server.close()
    return ports


@define
class Gateway:
    """A running gateway: what it answers, and what it counts."""

    model: str
    port: int
    metrics_port: int

    def ask(self, prompt: str) -> tuple[int, int]:
        """Send a prompt; how many tokens it has, and how many of them its engine had cached."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": 1, "temperature": 0}
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            usage: dict[str, Any] = json.load(answer)["usage"]
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]

    def reaches_both(self) -> bool:
        """Whether prompts get through to both engines; this one is too short for a block."""
        try:
            self.ask("a")
        except OSError:
            return False
        return len(re.findall("^smg_worker_requests_total{", self.page(), re.M)) == 2

    def page(self) -> str:
        """What it tells Prometheus."""
        url = f"http://127.0.0.1:{self.metrics_port}/metrics"
        with urllib.request.urlopen(url, timeout=LIMIT_S) as answer:
            text: str = answer.read().decode()
        return text

    def count(self, series: str) -> float:
        """The sum of a series over the workers."""
        found = re.findall(rf"^{re.escape(series)}.* (\S+)$", self.page(), re.M)
        return sum(map(float, found))

    @property
    def blocks(self) -> float:
        """How many blocks it was told of."""
        return self.count("smg_kv_event_blocks_total")

    @property
    def hits(self) -> float:
        """How many requests it sent where the events said that their prefix is."""
        return self.count('smg_cache_aware_policy_branch_total{branch="event_hit"}')


@define
class Site:
    """Two engines, each behind a server of the gateway's package, and gateways before both."""

    folder: Path
    model: str
    workers: list[str] = field(factory=list)
    processes: list[Any] = field(factory=list)

    def start_engine(self) -> None:
        """Start an engine that publishes, and what shows it to gateways."""
        grpc, *others = free_ports(4)
        handshake, events, replays = (f"tcp://127.0.0.1:{port}" for port in others)
        addresses = ["--handshake", handshake, "--events", events, "--replays", replays]
        worker = ["--port", str(grpc), "--model", self.model]
        self._start(sys.executable, str(SERVICER), *worker, *addresses)
        flags = ["--connect", handshake, "--plugins", "kv_events", "--page-size", str(PAGE)]
        flags += ["--kv-events-endpoint", events, "--kv-events-replay-endpoint", replays]
        flags += ["--model", self.model] if MODEL else ["--data-plane", "scripted"]
        self._start(sys.executable, "-m", "tokenspeed_core", "engine", *flags)
        self.workers.append(f"grpc://127.0.0.1:{grpc}")

    def start_gateway(self, policy: str) -> Gateway:
        """Start a gateway, and wait until it sends prompts to both engines."""
        gateway = Gateway(self.model, *free_ports(2))
        flags = {
            "--backend": "tokenspeed",
            "--host": "127.0.0.1",
            "--port": gateway.port,
            "--prometheus-port": gateway.metrics_port,
            "--model-path": self.model,
            "--policy": policy,
            "--health-check-interval-secs": 1,
            "--load-monitor-interval": 1,
        }
        words = [str(word) for pair in flags.items() for word in pair]
        words += ["--disable-circuit-breaker", "--worker-urls", *self.workers]
        self._start(sys.executable, "-m", "smg", "launch", *words)
        self.wait_for(gateway.reaches_both)
        return gateway

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Wait until it holds."""
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            if time.monotonic() > deadline:
                said = (self.folder / "log").read_text()[-4000:]
                raise AssertionError(f"not within {LIMIT_S} s: {said}")
            time.sleep(0.05)

    def close(self) -> None:
        """End everything; the gateways would take their time."""
        for process in reversed(self.processes):
            process.kill() if "smg" in process.args else process.terminate()
        for process in self.processes:
            process.wait(LIMIT_S)

    def _start(self, *command: str) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (self.folder / "log").open("ab") as log:
            started = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        self.processes.append(started)


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """Two engines, without a gateway."""
    with tempfile.TemporaryDirectory(prefix="ts") as folder:
        model = Path(folder)
        if MODEL:
            model = resolve_model(MODEL).path
        else:
            write_model(model)
        started = Site(Path(folder), str(model))
        try:
            started.start_engine()
            started.start_engine()
            yield started
        finally:
            started.close()


def write_model(folder: Path) -> None:
    """What a gateway reads of a model: its tokenizer, and some of its facts."""
    save_small_tokenizer(folder, vocab_size=VOCABULARY)
    facts = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "max_position_embeddings": 8192,
        "vocab_size": VOCABULARY,
        "eos_token_id": VOCABULARY - 1,
    }
    (folder / "config.json").write_text(json.dumps(facts))


def prompts(count: int, *, seed: int) -> list[str]:
    """Different texts, each of several blocks."""
    dice = random.Random(seed)
    return [" ".join(str(dice.randrange(1000)) for _ in range(60)) for _ in range(count)]


def test_repeats_go_to_the_engine_that_holds_their_prefix(site: Site) -> None:
    """One gateway spreads prompts in turns. Another, which was never asked for them, sends each to
    the engine that had it: at first by the events of before its start, which are replayed, then by
    those that come while it runs."""
    spreading = site.start_gateway("round_robin")
    earlier, later = prompts(6, seed=1), prompts(6, seed=2)
    wanted: float = spread(spreading, earlier)
    following = site.start_gateway("cache_aware")
    site.wait_for(lambda: following.blocks >= wanted)
    assert min(following.ask(text)[1] for text in earlier) > PAGE
    assert following.hits == len(earlier)

    wanted = following.blocks + spread(spreading, later)
    site.wait_for(lambda: following.blocks >= wanted)
    for text in random.Random(3).sample(earlier + later, 12):
        assert following.ask(text + " and on")[1] > PAGE
    assert following.hits == len(earlier) + 12


def spread(gateway: Gateway, texts: list[str]) -> int:
    """Send texts that no engine has; how many whole blocks they fill."""
    answers = [gateway.ask(text) for text in texts]
    assert [cached for _, cached in answers] == [0] * len(texts)
    return sum(tokens // PAGE for tokens, _ in answers)
