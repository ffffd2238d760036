# SPDX-License-Identifier: MIT
"""Constrained requests on ranks that are processes, with a real model."""

from __future__ import annotations

import pytest

from tokenspeed_core import compose


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_constrained_requests_follow_their_grammars_on_ranks_that_are_processes() -> None:
    """Each rank has the plugin; a bad grammar fails alone, and plain requests go on."""
    with compose("smollm2-135m", plugins=["grammar"], tp=3, threads=1) as engine:
        prompt = list(range(10, 18))
        wishes = {"max_new_tokens": 6, "features": {"regex": "a(b|x)"}}
        both = engine.generate([prompt, prompt], **wishes)
        assert {one.text for one in both} <= {"ab", "ax"}
        assert [one.finish_reason for one in both] == ["stop", "stop"]
        bad = engine.generate(prompt, max_new_tokens=6, features={"regex": "([a-z"})
        assert bad.finish.status_code == 400
        assert (bad.finish.message or "").startswith("Failed to compile regex grammar: ")
        plain = engine.generate(prompt, max_new_tokens=3, ignore_eos=True)
        assert len(plain.token_ids) == 3
