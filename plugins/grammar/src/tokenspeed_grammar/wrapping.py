# SPDX-License-Identifier: MIT
"""A grammar behind a model's thinking, as a structural tag."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from tokenspeed_grammar.backend import GrammarError
from tokenspeed_grammar.keys import GrammarKey
from tokenspeed_grammar.reasoning import FAMILIES, Format


def wrapped(key: GrammarKey) -> GrammarKey:
    """The structural tag that a key with a family stands for; GrammarError: it is no JSON."""
    if key.reasoning is None:
        return key
    elements = [*FAMILIES[key.reasoning], _CONTENTS[key.kind](key.source)]
    tag = {"format": {"type": "sequence", "elements": elements}}
    return GrammarKey("structural_tag", json.dumps(tag, ensure_ascii=False))


def _schema(source: str) -> Format:
    try:
        return {"type": "json_schema", "json_schema": json.loads(source)}
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"it must be JSON: {error}") from error


_CONTENTS: Mapping[str, Callable[[str], Format]] = {
    "json": _schema,
    "regex": lambda source: {"type": "regex", "pattern": source},
    "ebnf": lambda source: {"type": "grammar", "grammar": source},
}
