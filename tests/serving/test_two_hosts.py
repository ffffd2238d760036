# SPDX-License-Identifier: MIT
"""One model over two hosts, which here are network namespaces joined by a cable."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokenspeed_core.testing.small_tokenizer import save_small_tokenizer
from tokenspeed_core.testing.tiny_model import tiny_model

HOSTS = (("tokenspeed-a", "tsa0", "10.231.77.1"), ("tokenspeed-b", "tsb0", "10.231.77.2"))
PORT = "29571"


def ip(*arguments: str) -> None:
    """Run ip(8)."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=10)


@pytest.fixture
def hosts() -> Iterator[None]:
    """Two namespaces and the cable; skipped where this user may not make them."""
    (first, cable, _), (second, other, _) = HOSTS
    try:
        for name, _, _ in HOSTS:
            ip("netns", "add", name)
        ip("link", "add", cable, "netns", first, "type", "veth", "peer", other, "netns", second)
        for name, device, address in HOSTS:
            ip("-n", name, "addr", "add", f"{address}/24", "dev", device)
            ip("-n", name, "link", "set", device, "up")
            ip("-n", name, "link", "set", "lo", "up")
        yield
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("making network namespaces needs the right to administer the network")
    finally:
        for name, _, _ in HOSTS:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def start(node: int, model: Path) -> subprocess.Popen[str]:
    """Start torchrun on one host, with one stage of the model."""
    name = HOSTS[node][0]
    torchrun = ["-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    meeting = ["--node-rank", str(node), "--master-addr", HOSTS[0][2], "--master-port", PORT]
    options = ["--pp", "2", "--max-tokens", "4"]
    return subprocess.Popen(
        [
            *("ip", "netns", "exec", name, sys.executable, *torchrun, *meeting),
            *("-m", "tokenspeed_core", "generate", "hi", "--model", str(model), "--json", *options),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
@pytest.mark.usefixtures("hosts")
def test_stages_on_two_hosts_answer_a_prompt(tmp_path: Path) -> None:
    """torchrun starts a rank on each; they meet over tcp, and the first prints the answer."""
    model = tmp_path / "model"
    tiny_model(3).save(model)
    save_small_tokenizer(model, vocab_size=300)
    nodes = [start(node, model) for node in (0, 1)]
    outputs = [node.communicate(timeout=120) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], outputs
    assert '"finish_reason": "length"' in outputs[0][0]
