# SPDX-License-Identifier: MIT
"""The third party's package of the examples is built, installed and tested as by an outsider."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tokenspeed_core.testing.workplace import Workplace

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "key_limits"


@pytest.fixture
def copied(workplace: Workplace) -> Workplace:
    """The package alone in the workplace, without what tests may have left in it."""
    left_out = shutil.ignore_patterns("__pycache__", ".*")
    shutil.copytree(EXAMPLE, workplace.folder / "key_limits", ignore=left_out)
    return workplace


def test_it_is_built_and_installed(copied: Workplace) -> None:
    """From its wheel, in an environment of its own, it is loaded, and its own tests find it."""
    copied.must("pip wheel -q --no-deps --wheel-dir wheels ./key_limits")
    copied.must("pip install -q wheels/acme_key_limits-*.whl")
    shutil.rmtree(copied.folder / "key_limits" / "src")
    assert " passed" in copied.must("pytest -q key_limits -k test_key_limits")
    assert "key_limits" in copied.must("tokenspeed plugins --plugins key_limits --json")


def test_it_needs_the_contract_alone() -> None:
    """Its code imports nothing of the engine."""
    sources = [path.read_text() for path in (EXAMPLE / "src").rglob("*.py")]
    assert len(sources) == 5
    assert [text for text in sources if "tokenspeed_core" in text] == []
