# SPDX-License-Identifier: MIT
"""JSON schemas before a library compiles them: what it would read differently is rewritten, what
could be understood in two ways is refused. Keywords that it does not implement it refuses itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tokenspeed_grammar.backend import GrammarError
from tokenspeed_grammar.formats import PATTERNS
from tokenspeed_grammar.patterns import javascript_pattern
from tokenspeed_grammar.turns import let_others

# Where none of this stands all is as it should be, and the text needs no parse.
TELLING = ('"pattern"', '"patternProperties"', '"$schema"', '"x-guidance"', "\\u")
DATED = re.compile(r'"format"\s*:\s*"(?:date|time)')
# Under these are names, and under the others values rather than schemas.
NAMED = ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
VALUES = ("const", "default", "enum", "examples")
OLDER_DRAFT = re.compile(r"^https?://json-schema\.org/draft-0[467]/schema#?$")
DRAFT_3 = re.compile(r"^https?://json-schema\.org/draft-03/")
# What stands beside a reference and asserts nothing.
ANNOTATIONS = frozenset(
    [
        *("$comment", "$defs", "$id", "$schema", "default", "definitions", "description"),
        *("examples", "id", "readOnly", "title", "writeOnly"),
    ]
)
NODES_A_TURN = 200


def prepared_source(source: str) -> str:
    """The text of a schema, fit for a library; GrammarError says why it is not."""
    # A search for texts is a tenth of the work of one expression for all of them.
    is_dated = '"format"' in source and DATED.search(source) is not None
    if not is_dated and not any(text in source for text in TELLING):
        return source
    try:
        schema = json.loads(source)
    except (ValueError, RecursionError):
        return source  # the compiler says what is wrong with it
    prepare(schema)
    try:
        return json.dumps(schema, allow_nan=False)
    except ValueError as error:
        raise GrammarError("a number in it is too large") from error


def prepare(schema: Any) -> None:
    """Make a parsed schema fit for a library, in place."""
    is_older = _is_older(schema)
    for number, node in enumerate(_nodes(schema)):
        if number % NODES_A_TURN == 0:
            let_others()
        if "x-guidance" in node:
            raise GrammarError("x-guidance in a schema would change how its keywords are read")
        if is_older and "$ref" in node:
            _check_beside(node)
        _rewrite_patterns(node)
        _rewrite_format(node)


def _is_older(schema: Any) -> bool:
    dialect = schema.get("$schema") if isinstance(schema, dict) else None
    if not isinstance(dialect, str):
        return False
    if DRAFT_3.match(dialect):
        raise GrammarError("$schema names draft 3, and drafts 4 to 2020-12 are known")
    return OLDER_DRAFT.match(dialect) is not None


def _nodes(schema: Any) -> Iterator[dict[str, Any]]:
    """Every mapping of a schema that may be a schema itself, where a reference can lead."""
    waiting = [schema]
    while waiting:
        found = waiting.pop()
        if isinstance(found, list):
            waiting.extend(found)
        elif isinstance(found, dict):
            yield found
            waiting.extend(_below(found))


def _below(node: dict[str, Any]) -> Iterator[Any]:
    for name, value in node.items():
        if name in NAMED and isinstance(value, dict):
            yield from value.values()
        elif name not in VALUES:
            yield value


def _check_beside(node: dict[str, Any]) -> None:
    ignored = sorted(node.keys() - ANNOTATIONS - {"$ref"})
    if ignored:
        raise GrammarError(
            f"beside a $ref the draft in $schema ignores {', '.join(ignored)}; put them into an "
            "allOf, or leave $schema out"
        )


def _rewrite_patterns(node: dict[str, Any]) -> None:
    pattern = node.get("pattern")
    if isinstance(pattern, str):
        node["pattern"] = javascript_pattern(pattern)
    named = node.get("patternProperties")
    if isinstance(named, dict):
        rewritten = {javascript_pattern(name): schema for name, schema in named.items()}
        if len(rewritten) < len(named):
            raise GrammarError("two of the patternProperties are the same pattern")
        node["patternProperties"] = rewritten


def _rewrite_format(node: dict[str, Any]) -> None:
    name = node.get("format")
    pattern = PATTERNS.get(name) if isinstance(name, str) else None
    if pattern is None:
        return
    del node["format"]
    if "pattern" not in node:
        node["pattern"] = pattern
    elif isinstance(node.setdefault("allOf", []), list):
        node["allOf"].append({"pattern": pattern})
    else:
        raise GrammarError("allOf must be a list")
