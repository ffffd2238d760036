# SPDX-License-Identifier: MIT
"""Words that must not stand where they stand."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pytest

FEATURE = re.compile(
    r"grammar|eplb|engram|prometheus|disagg|mooncake|(?<![a-z0-9])(?:epd|pd|l3)(?![a-z0-9])", re.I
)
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|opt|root|tmp|work)/")
EXCUSE = re.compile(r"#\s*(?:type:\s*ignore|noqa)(?!\S*\s+# \w)|pytest\.mark\.(?:skip|xfail)\b")


def _findings(texts: Mapping[str, str], pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{place}:{number}: {found.group()}"
        for place, text in texts.items()
        for number, line in enumerate(text.splitlines(), 1)
        if (found := pattern.search(line))
    ]


def test_the_core_names_no_subsystem(python_texts: Mapping[str, str]) -> None:
    """No line, comment or file name of the engine holds a feature word."""
    core = {p: text for p, text in python_texts.items() if p.startswith("tokenspeed_core/")}
    assert _findings(core, FEATURE) == []
    assert [place for place in core if FEATURE.search(place)] == []


@pytest.mark.parametrize("line", ["self.pd_role", "role_pd", "an L3 store", "EpD", "Grammars"])
def test_a_feature_word_is_seen(line: str) -> None:
    """The pattern sees a word at either end of a name and in any case."""
    assert FEATURE.search(line)


@pytest.mark.parametrize("line", ["updated", "expand", "xl32", "cpd"])
def test_letters_inside_a_word_are_no_feature_word(line: str) -> None:
    """The short words count only when they stand alone."""
    assert not FEATURE.search(line)


def test_no_path_of_a_machine(texts: Mapping[str, str]) -> None:
    """No file names a folder of the machine it was written on."""
    assert _findings(texts, MACHINE_PATH) == []


def test_an_excuse_states_its_reason(python_texts: Mapping[str, str]) -> None:
    """A silenced check carries a second comment that says why; no test is skipped."""
    others = {p: text for p, text in python_texts.items() if p != "tests/layering/test_words.py"}
    assert _findings(others, EXCUSE) == []
