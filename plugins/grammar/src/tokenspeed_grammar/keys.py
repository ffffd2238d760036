# SPDX-License-Identifier: MIT
"""What a request asks for: the grammar's kind and source, which together name it everywhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from attrs import frozen

ANY_OBJECT = '{"type": "object"}'
# What other senders of the wire write for a JSON object of any shape.
ANY_SOURCE = "$$ANY$$"


@frozen
class GrammarKey:
    """A grammar's name: its kind (json, regex, ebnf, structural_tag) and its source text."""

    kind: str
    source: str


def names_grammar(features: Mapping[str, object]) -> bool:
    """Whether a request that was found valid is constrained."""
    return any(features.get(name) not in (None, False) for name in FEATURES if name in features)


def key_of(features: Mapping[str, object]) -> GrammarKey | None:
    """The grammar that a request's features name, or None; ValueError says what is wrong."""
    if not features:
        return None
    named = [name for name in FEATURES if features.get(name) not in (None, False)]
    if len(named) > 1:
        raise ValueError(f"only one of {', '.join(FEATURES)} can be set, got {', '.join(named)}")
    return FEATURES[named[0]](features[named[0]]) if named else None


def _json_schema(value: object) -> GrammarKey:
    if value == ANY_SOURCE:
        return GrammarKey("json", ANY_OBJECT)
    return GrammarKey("json", _json_text(value, "json_schema"))


def _json_object(value: object) -> GrammarKey:
    if value is not True:
        raise ValueError(f"json_object must be true or false, got {_shown(value)}")
    return GrammarKey("json", ANY_OBJECT)


def _regex(value: object) -> GrammarKey:
    return GrammarKey("regex", _text(value, "regex"))


def _ebnf(value: object) -> GrammarKey:
    return GrammarKey("ebnf", _text(value, "ebnf"))


def _structural_tag(value: object) -> GrammarKey:
    return GrammarKey("structural_tag", _json_text(value, "structural_tag"))


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text, got {_shown(value)}")
    return value


def _json_text(value: object, name: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping | bool):
        raise ValueError(f"{name} must be a mapping or JSON text, got {_shown(value)}")
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{name} cannot be written as JSON: {error}") from error


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


# In the order of their precedence, had several been allowed.
FEATURES: Mapping[str, Callable[[object], GrammarKey]] = {
    "json_schema": _json_schema,
    "json_object": _json_object,
    "regex": _regex,
    "ebnf": _ebnf,
    "structural_tag": _structural_tag,
}
