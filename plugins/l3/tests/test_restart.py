# SPDX-License-Identifier: MIT
"""The default model over a restart: what an earlier engine computed comes from the store."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tokenspeed_core import Completion, compose
from tokenspeed_core.cli.main import main

# 700 tokens that nobody has to tokenize.
PROMPT = [100 + (37 * n) % 9000 for n in range(700)]
MODEL = "smollm2-135m"


def ask(prompts: Sequence[list[int]], **options: Any) -> list[Completion]:
    """What an engine that was just started answers, one prompt after the other."""
    engine = compose(MODEL, num_pages=65, max_batch_size=4, **options)
    with engine:
        return [engine.generate(each, max_new_tokens=8, temperature=0.0) for each in prompts]


@pytest.mark.slow
def test_a_prompt_comes_from_the_store_after_a_restart(tmp_path: Path) -> None:
    """The tokens are those without any tier; usage says which cached tokens were where."""
    (expected,) = ask([PROMPT])
    tiered = {
        "plugins": ["l3"],
        "host_cache": "256MiB",
        "l3": {"store": f"file:{tmp_path}", "wait_timeout_s": 60.0},
    }
    other = [*PROMPT[:640], *range(200, 260)]
    cold, _ = ask([PROMPT, other], **tiered)
    warm, again = ask([PROMPT, other], **tiered)
    assert cold.token_ids == warm.token_ids == expected.token_ids
    assert cold.usage.cached_by_tier == {}
    assert warm.usage.cached_by_tier["storage"] >= 640
    assert sum(warm.usage.cached_by_tier.values()) == warm.usage.cached_tokens
    assert again.usage.cached_tokens >= 640
    # Other weights, number formats and page sizes find nothing.
    (paged,) = ask([PROMPT], **tiered, page_size=32)
    assert paged.usage.cached_tokens == 0
    assert paged.token_ids == expected.token_ids


@pytest.mark.slow
def test_the_flags_of_a_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`tokenspeed generate --host-cache SIZE --l3 file:PATH`: the second time tells its hits."""
    text = "In the beginning there was a lighthouse, and in it lived a keeper with a cat. " * 40
    flags = ["--max-tokens", "4", "--temperature", "0", "--num-pages", "65", "--json"]
    tiers = ["--host-cache", "256MiB", "--l3", f"file:{tmp_path}", "--l3-wait-timeout-s", "60"]
    rows = []
    for _ in range(2):
        assert main(["generate", text, *flags, *tiers]) == 0
        rows.append(json.loads(capsys.readouterr().out.splitlines()[0]))
    assert rows[0]["text"] == rows[1]["text"]
    assert rows[1]["usage"]["cached_by_tier"]["storage"] >= 512
