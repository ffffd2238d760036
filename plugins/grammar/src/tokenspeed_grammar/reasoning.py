# SPDX-License-Identifier: MIT
"""Models that think before they answer: the thinking is free, and the grammar holds behind it.

A family is named as reasoning parsers are elsewhere. Whether the chat template opened the block or
the model does, all up to the end mark is thinking; some families put an empty line behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Format = Mapping[str, Any]

THINKING: Format = {
    "type": "tag",
    "begin": "",
    "content": {"type": "any_text"},
    "end": "</think>",
}
EMPTY_LINE: Format = {"type": "const_string", "value": "\n\n"}
# What stands before the content.
FAMILIES: Mapping[str, tuple[Format, ...]] = {
    "deepseek_r1": (THINKING,),
    "deepseek_v31": (THINKING,),
    "kimi": (THINKING,),
    "kimi_k25": (THINKING,),
    "minimax": (THINKING, EMPTY_LINE),
    "qwen3": (THINKING, EMPTY_LINE),
    "qwen3_thinking": (THINKING, EMPTY_LINE),
}
OFF = "off"


def family_of(value: object, *, usual: str | None) -> str | None:
    """The family that a request's feature names, None for no thinking; `usual` is the engine's."""
    if value is None:
        return usual
    if value is False or value == OFF:
        return None
    if isinstance(value, str) and value in FAMILIES:
        return value
    if value is True and usual is not None:
        return usual
    known = ", ".join(FAMILIES)
    raise ValueError(f"reasoning must be false or one of {known}, got {str(value)[:80]!r}")
