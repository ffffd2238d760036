# SPDX-License-Identifier: MIT
"""The ten-minute text works as it stands: its files are written, its lines run, in order."""

from __future__ import annotations

import re
from pathlib import Path

from tokenspeed_core.testing.workplace import Workplace

TEXT = Path(__file__).resolve().parents[2] / "examples" / "FIRST_PLUGIN.md"
BLOCK = re.compile(r"^```(sh|python|text)\n(.*?)^```", re.M | re.S)


def _blocks() -> list[tuple[str, str]]:
    return [(found[1], found[2]) for found in BLOCK.finditer(TEXT.read_text(encoding="utf-8"))]


def test_the_first_plugin_works_line_by_line(workplace: Workplace) -> None:
    """Each shell line succeeds, and what the text shows stands in what was said."""
    said = ""
    for kind, text in _blocks():
        if kind == "sh":
            said = "\n".join(workplace.must(line) for line in text.splitlines())
        elif kind == "python":
            path = workplace.folder / text.splitlines()[0].removeprefix("# ")
            path.write_text(text, encoding="utf-8")
        else:
            missing = [line for line in text.splitlines() if line not in said]
            assert missing == [], said


def test_every_kind_of_block_is_there() -> None:
    """The text is read as it is written: no block escapes the test."""
    fences = TEXT.read_text(encoding="utf-8").count("\n```")
    assert fences == 2 * len(_blocks())
    assert {kind for kind, _ in _blocks()} == {"sh", "python", "text"}
