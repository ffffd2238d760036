# SPDX-License-Identifier: MIT
"""What a request asks for: the grammar's kind and source, which together name it everywhere."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence

from attrs import evolve, frozen

from tokenspeed_grammar.reasoning import family_of

ANY_OBJECT = '{"type": "object"}'
# What other senders of the wire write for a JSON object of any shape.
ANY_SOURCE = "$$ANY$$"
REASONING = "reasoning"
# What means something in a pattern.
META = re.compile(r"[\\.^$|?*+()\[\]{}]")


@frozen
class GrammarKey:
    """A grammar's name: its kind (json, regex, ebnf, structural_tag) and its source text, and the
    family of models whose thinking comes first, if any."""

    kind: str
    source: str
    reasoning: str | None = None


def names_grammar(features: Mapping[str, object]) -> bool:
    """Whether a request that was found valid is constrained."""
    return any(features.get(name) not in (None, False) for name in FEATURES if name in features)


def key_of(
    features: Mapping[str, object], *, reasoning_parser: str | None = None
) -> GrammarKey | None:
    """The grammar that a request's features name, or None; ValueError says what is wrong.

    `reasoning_parser` is the family of a request that names none.
    """
    if not features:
        return None
    family = family_of(features.get(REASONING), usual=reasoning_parser)
    named = [name for name in FEATURES if features.get(name) not in (None, False)]
    if len(named) > 1:
        raise ValueError(f"only one grammar can be set, got {', '.join(named)}")
    if not named:
        return None
    (name,) = named
    key = FEATURES[name](features[name], name)
    # A tag says itself where free text may stand.
    return key if key.kind == "structural_tag" else evolve(key, reasoning=family)


def _json_schema(value: object, name: str) -> GrammarKey:
    if value == ANY_SOURCE:
        return GrammarKey("json", ANY_OBJECT)
    return GrammarKey("json", _json_text(value, name))


def _json_object(value: object, name: str) -> GrammarKey:
    if value is not True:
        raise ValueError(f"{name} must be true or false, got {_shown(value)}")
    return GrammarKey("json", ANY_OBJECT)


def _regex(value: object, name: str) -> GrammarKey:
    return GrammarKey("regex", _text(value, name))


def _ebnf(value: object, name: str) -> GrammarKey:
    return GrammarKey("ebnf", _text(value, name))


def _structural_tag(value: object, name: str) -> GrammarKey:
    return GrammarKey("structural_tag", _json_text(value, name))


def _choice(value: object, name: str) -> GrammarKey:
    if not isinstance(value, Sequence) or isinstance(value, str) or not value:
        raise ValueError(f"{name} must be a list of texts, got {_shown(value)}")
    texts = [_text(each, f"{name}[{place}]") for place, each in enumerate(value)]
    return GrammarKey("regex", "|".join(META.sub(r"\\\g<0>", text) for text in texts))


def _structured(value: object, name: str) -> GrammarKey:
    """vLLM's mapping of one of several names to a grammar."""
    if not isinstance(value, Mapping):
        raise ValueError(f"{name} must be a mapping, got {_shown(value)}")
    named = [each for each in value if value[each] not in (None, False)]
    if len(named) != 1 or named[0] not in STRUCTURED:
        known, got = ", ".join(STRUCTURED), ", ".join(map(str, named)) or "none"
        raise ValueError(f"{name} must hold exactly one of {known}, got {got[:80]}")
    return STRUCTURED[named[0]](value[named[0]], f"{name}.{named[0]}")


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


Read = Callable[[object, str], GrammarKey]
STRUCTURED: Mapping[str, Read] = {
    "json": _json_schema,
    "json_object": _json_object,
    "regex": _regex,
    "choice": _choice,
    "grammar": _ebnf,
    "structural_tag": _structural_tag,
}
# In the order of their precedence, had several been allowed; at the end vLLM's names.
FEATURES: Mapping[str, Read] = {
    "json_schema": _json_schema,
    "json_object": _json_object,
    "regex": _regex,
    "ebnf": _ebnf,
    "structural_tag": _structural_tag,
    "structured_outputs": _structured,
    "guided_json": _json_schema,
    "guided_json_object": _json_object,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _ebnf,
}
