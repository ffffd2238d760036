# SPDX-License-Identifier: MIT
"""Served processes on one store: what a server computed, a later one takes from there, and says so.

Asked over HTTP, by the plugin `openai`, and watched by the plugin `metrics`.
"""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from attrs import frozen

MODEL = "smollm2-135m"
LIMIT_S = 240.0
# 20 pages and a half, which nobody has to tokenize.
PROMPT = [100 + (37 * n) % 9000 for n in range(328)]
needed = ("tokenspeed_openai", "tokenspeed_metrics")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2 * LIMIT_S),
    *(
        pytest.mark.skipif(not importlib.util.find_spec(name), reason=f"without {name}")
        for name in needed
    ),
]


@frozen
class Server:
    """A running `tokenspeed serve`."""

    url: str

    def ask(self) -> Mapping[str, Any]:
        """The prompt's completion."""
        body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 6, "temperature": 0}
        headers = {"content-type": "application/json"}
        url = f"{self.url}/v1/completions"
        question = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(question, timeout=LIMIT_S) as answer:
            found: Mapping[str, Any] = json.load(answer)
        return found

    def series(self, name: str, label: str = "") -> float:
        """The value of a series that has this label; 0 where there is none."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=LIMIT_S) as page:
            lines = page.read().decode().splitlines()
        found = (
            each for each in lines if each.startswith(f"tokenspeed:{name}{{") and label in each
        )
        return sum(float(each.rpartition(" ")[2]) for each in found)


@contextmanager
def serving(folder: Path) -> Iterator[Server]:
    """A server on a file store, from its start to its orderly end."""
    command = [sys.executable, "-m", "tokenspeed_core", "serve", MODEL, "--port", "0", "--json"]
    command += ["--num-pages=65", "--page-size=16", "--host-cache=64MiB", "--plugins=metrics"]
    command += ["--l3", f"file:{folder}", "--l3-wait-timeout-s", "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = (json.loads(line) for line in process.stdout)
        try:
            yield Server(next(event["url"] for event in told if event["event"] == "ready"))
            process.send_signal(signal.SIGINT)
            assert process.wait(LIMIT_S) == 0
        finally:
            process.kill()


def test_a_server_begun_anew_and_one_beside_it_take_the_prompt_from_the_store(
    tmp_path: Path,
) -> None:
    """The text is the same, usage tells the tier, and so do the series."""
    with serving(tmp_path) as first:
        cold = first.ask()
        end = time.monotonic() + LIMIT_S
        while first.series("l3_hits_total", 'kind="put"') < len(PROMPT) // 16:
            assert time.monotonic() < end, "the prompt was never stored"
            time.sleep(0.05)
    with serving(tmp_path) as second, serving(tmp_path) as beside:
        for server in (second, beside):
            warm = server.ask()
            assert warm["choices"][0]["text"] == cold["choices"][0]["text"]
            tiers = warm["usage"]["prompt_tokens_details"]["cached_tokens_details"]
            assert tiers == {"device": 0, "host": 0, "storage": 320}
            assert server.series("l3_cached_tokens_total", 'tier="storage"') == 320
            assert server.series("l3_operations_total", 'kind="get"') == 1
            assert server.series("l3_health") == 0
    assert not cold["usage"]["prompt_tokens_details"]["cached_tokens"]
