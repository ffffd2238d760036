# SPDX-License-Identifier: MIT
"""Structural tags: free text with places in it that follow a grammar, written as a Lark grammar.

Two forms are read: `{"structures": [...], "triggers": [...]}`, and the newer `{"format": {...}}` of
nested formats. Formats are flattened to pieces in a row, because free text ends where the fixed
text behind it first appears, wherever in the nesting that stands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import llguidance
from attrs import define, field, frozen
from llguidance.gbnf_to_lark import gbnf_to_lark

from tokenspeed_grammar.backend import GrammarError
from tokenspeed_grammar.schemas import prepare

ANY_TEXT = "/(.|\\n)*/"
# What a client sent, parsed; every access is checked by `_get`.
Json = Mapping[str, Any]


@frozen
class Literal:
    """One of these texts, exactly."""

    texts: tuple[str, ...]


@frozen
class FreeText:
    """Any text, up to the literal that follows."""


@frozen
class Part:
    """A Lark expression."""

    expression: str


@frozen
class Triggered:
    """Free text in which a trigger begins one of its tags: trigger to the pieces behind it."""

    tags: Mapping[str, Sequence[Sequence[Piece]]]
    at_least_one: bool = False
    stop_after_first: bool = False


Piece = Literal | FreeText | Part | Triggered


def regex_part(pattern: str) -> Part:
    """Text that matches a pattern as a whole."""
    return Part(pattern_in_lark(pattern))


def pattern_in_lark(pattern: str) -> str:
    r"""A pattern between slashes; as in JSON Schema, \d and \w are ASCII."""
    return f"/{llguidance.regex_to_lark(pattern, use_ascii='dw')}/"


@define(eq=False)
class TagWriter:
    """Writes one grammar; `special_ids` are the texts of tokens that are never plain text,
    `json_options` the library's for each schema in it."""

    special_ids: Mapping[str, int]
    json_options: Mapping[str, object] = field(factory=dict)
    _rules: list[str] = field(factory=list, init=False)
    _grammars: list[dict[str, str]] = field(factory=list, init=False)

    def structural_tag(self, source: str) -> str:
        """The grammar of a structural tag; GrammarError says what is wrong with it."""
        try:
            parsed = json.loads(source)
        except (ValueError, RecursionError) as error:
            raise GrammarError(f"a structural tag must be JSON: {error}") from error
        if not isinstance(parsed, dict):
            raise GrammarError(f"a structural tag must be a JSON object, got {source[:40]!r}")
        if "format" in parsed:
            return self.grammar(self.pieces(_get(parsed, "format", kind=dict)))
        return self.grammar([self._structures(parsed)])

    def grammar(self, pieces: Sequence[Piece]) -> str:
        """The grammar of pieces in a row."""
        start = self._row(pieces)
        lark = "\n".join(["%llguidance {}", f"start: {start}", *self._rules])
        return json.dumps({"grammars": [{"name": "tags", "lark_grammar": lark}, *self._grammars]})

    def json_part(self, schema: object) -> Part:
        """JSON that follows a schema."""
        prepare(schema)
        own = schema if isinstance(schema, dict) else {"allOf": [schema]}
        return Part(f"%json {json.dumps({'x-guidance': self.json_options, **own})}")

    def ebnf_part(self, lark: str) -> Part:
        """Text that follows a grammar of its own."""
        name = f"nested_{len(self._grammars)}"
        self._grammars.append({"name": name, "lark_grammar": lark})
        return Part(f"@{name}")

    # --- formats to pieces -----------------------------------------------------------------------

    def pieces(self, form: Json) -> list[Piece]:
        """Flatten a format."""
        kind = _get(form, "type", kind=str)
        read = _FORMATS.get(kind)
        if read is None:
            known = ", ".join(sorted(_FORMATS))
            raise GrammarError(f"unknown format type {kind!r}; known are {known}")
        return read(self, form)

    def _structures(self, parsed: Json) -> Triggered:
        tags = [
            {
                "begin": _get(each, "begin", kind=str),
                "content": {"type": "json_schema", "json_schema": each.get("schema", True)},
                "end": each.get("end", ""),
            }
            for each in _dicts(parsed, "structures")
        ]
        return self._by_trigger(_texts(parsed, "triggers"), tags)

    def _by_trigger(self, triggers: Sequence[str], tags: Sequence[Json]) -> Triggered:
        found: dict[str, list[list[Piece]]] = {trigger: [] for trigger in triggers}
        for tag in tags:
            begin = _get(tag, "begin", kind=str)
            trigger = next((each for each in triggers if begin.startswith(each)), None)
            if not trigger:
                raise GrammarError(f"tag {begin!r} begins with none of the triggers {triggers}")
            rest = self._tag({**tag, "begin": begin[len(trigger) :]})
            found[trigger].append(rest)
        unused = [trigger for trigger, rests in found.items() if not rests]
        if unused or not found:
            raise GrammarError(f"no tag begins with the triggers {unused}")
        return Triggered(found)

    def _tag(self, form: Json) -> list[Piece]:
        ends = form.get("end", "")
        begin = Literal((_get(form, "begin", kind=str),))
        last = Literal(tuple(_texts(form, "end")) if isinstance(ends, list) else (str(ends),))
        return [begin, *self.pieces(_get(form, "content", kind=dict)), last]

    def _sequence(self, form: Json) -> list[Piece]:
        return [piece for each in _dicts(form, "elements") for piece in self.pieces(each)]

    def _or(self, form: Json) -> list[Piece]:
        rows = [self._row(self.pieces(each)) for each in _dicts(form, "elements")]
        return [Part(self._rule(" | ".join(f"({row})" for row in rows)))]

    def _repeated(self, form: Json, mark: str) -> list[Piece]:
        row = self._row(self.pieces(_get(form, "content", kind=dict)))
        return [Part(f"{self._rule(row)}{mark}")]

    def _triggered(self, form: Json) -> list[Piece]:
        found = self._by_trigger(_texts(form, "triggers"), _dicts(form, "tags"))
        return [
            Triggered(
                found.tags,
                at_least_one=bool(form.get("at_least_one")),
                stop_after_first=bool(form.get("stop_after_first")),
            )
        ]

    def _separated(self, form: Json) -> list[Piece]:
        rows = [self._row(self._tag(each)) for each in _dicts(form, "tags")]
        one = self._rule(" | ".join(f"({row})" for row in rows))
        separator = self._literal(_get(form, "separator", kind=str))
        many = one if form.get("stop_after_first") else f"{one} ({separator} {one})*"
        return [Part(self._rule(many if form.get("at_least_one") else f"({many})?"))]

    # --- pieces to rules -------------------------------------------------------------------------

    def _row(self, pieces: Sequence[Piece]) -> str:
        pieces = [each for each in pieces if each != Literal(("",))]
        written: list[str] = []
        at = 0
        while at < len(pieces):
            piece, following = pieces[at], pieces[at + 1 : at + 2]
            at += 1
            if isinstance(piece, Part):
                written.append(piece.expression)
            elif isinstance(piece, Literal):
                written.append(self._literals(piece))
            else:
                end = following[0] if following else None
                if end is not None and not isinstance(end, Literal):
                    raise GrammarError("free text must be followed by a fixed text or by the end")
                written.append(self._open(piece, end))
                at += end is not None
        return " ".join(written) or '""'

    def _open(self, piece: FreeText | Triggered, end: Literal | None) -> str:
        if isinstance(piece, FreeText):
            return self._until(end)
        tags = []
        for trigger, rests in piece.tags.items():
            rows = " | ".join(f"({self._row(rest)})" for rest in rests)
            tags.append(f"{self._until(Literal((trigger,)))} ({rows})")
        one = self._rule(" | ".join(f"({tag})" for tag in tags))
        if piece.stop_after_first:
            last = "" if end is None else self._literals(end)
            return f"{one} {last}" if piece.at_least_one else f"({one} {last} | {self._until(end)})"
        return f"{one}{'+' if piece.at_least_one else '*'} {self._until(end)}"

    def _until(self, end: Literal | None) -> str:
        """Free text with the literal that ends it; it ends at the literal's first appearance."""
        if end is None:
            return self._rule(ANY_TEXT)
        if any(text in self.special_ids for text in end.texts):
            return f"{self._rule(ANY_TEXT)} {self._literals(end)}"
        heads = [self._split(text) for text in end.texts]
        if len(heads) == 1:
            head, *rest = heads[0]
            return " ".join([self._rule(f"{ANY_TEXT} {head}", lazy=True), *rest])
        return self._rule(f"{ANY_TEXT} {self._literals(end)}", lazy=True)

    def _rule(self, expression: str, *, lazy: bool = False) -> str:
        name = f"piece_{len(self._rules)}"
        self._rules.append(f"{name}{'[lazy]' if lazy else ''}: {expression}")
        return name

    def _literals(self, literal: Literal) -> str:
        return "(" + " | ".join(self._literal(text) for text in literal.texts) + ")"

    def _literal(self, text: str) -> str:
        return " ".join(self._split(text)) or '""'

    def _split(self, text: str) -> list[str]:
        """A text as Lark: what is a token of its own by that token's id, the rest quoted."""
        if not self.special_ids:
            return [json.dumps(text, ensure_ascii=False)] if text else []
        pattern = "|".join(map(re.escape, sorted(self.special_ids, key=len, reverse=True)))
        parts = [part for part in re.split(f"({pattern})", text) if part]
        return [
            f"<[{self.special_ids[part]}]>"
            if part in self.special_ids
            else json.dumps(part, ensure_ascii=False)
            for part in parts
        ]


def as_lark(source: str) -> str:
    """An EBNF as llama.cpp writes it (`name ::= ...`), as Lark; Lark stays as it is."""
    return gbnf_to_lark(source) if "::=" in source else source


_FORMATS: Mapping[str, Callable[[TagWriter, Json], list[Piece]]] = {
    "any_text": lambda writer, form: [FreeText()],
    "const_string": lambda writer, form: [Literal((_get(form, "value", kind=str),))],
    "grammar": lambda writer, form: [writer.ebnf_part(as_lark(_get(form, "grammar", kind=str)))],
    "json_schema": lambda writer, form: [writer.json_part(form.get("json_schema", True))],
    "optional": lambda writer, form: writer._repeated(form, "?"),
    "or": TagWriter._or,
    "plus": lambda writer, form: writer._repeated(form, "+"),
    "regex": lambda writer, form: [regex_part(_get(form, "pattern", kind=str))],
    "sequence": TagWriter._sequence,
    "star": lambda writer, form: writer._repeated(form, "*"),
    "tag": TagWriter._tag,
    "tags_with_separator": TagWriter._separated,
    "triggered_tags": TagWriter._triggered,
}


def _get(form: Json, name: str, *, kind: type) -> Any:
    value = form.get(name)
    if not isinstance(value, kind):
        raise GrammarError(f"{name!r} must be a {kind.__name__}, got {json.dumps(value)[:80]}")
    return value


def _dicts(form: Json, name: str) -> list[Json]:
    values = _get(form, name, kind=list)
    if not values or not all(isinstance(each, dict) for each in values):
        raise GrammarError(f"{name!r} must be a list of objects, and not empty")
    return list(values)


def _texts(form: Json, name: str) -> list[str]:
    values = _get(form, name, kind=list)
    if not values or not all(isinstance(each, str) and each for each in values):
        raise GrammarError(f"{name!r} must be a list of texts, and not empty")
    return list(values)
