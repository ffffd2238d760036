# SPDX-License-Identifier: MIT
"""Grammars by xgrammar, an extra: `pip install tokenspeed-grammar[xgrammar]`.

Its masks are quicker and its compiles slower than those of the default. Of a JSON schema it passes
over what it does not know without a word, so keywords are checked before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import xgrammar
from attrs import define, field, frozen

from tokenspeed_grammar.backend import (
    BackendSettings,
    CompiledGrammar,
    GrammarError,
    Mask,
    Matcher,
    Vocabulary,
    Whitespace,
)
from tokenspeed_grammar.schemas import prepare, prepared_source
from tokenspeed_grammar.xgrammar_schemas import check_repeats, fit_schema

LONGEST_REASON = 600
FEW_MATCHERS = 4
# Before each message stands when and where in the library's source it arose.
PLACE = re.compile(r"\[\d\d:\d\d:\d\d\][^:\n]*:\d+:\s*|(?:/[\w.+-]+)+:\d+:?\s*")
JSON_OPTIONS: dict[Whitespace, dict[str, Any]] = {
    Whitespace.NONE: {"any_whitespace": False, "separators": (",", ":")},
    Whitespace.SOME: {"any_whitespace": True, "max_whitespace_cnt": 33},
    Whitespace.ANY: {"any_whitespace": True},
}


class XGrammarBackend:
    """See the module."""

    def __init__(self, vocabulary: Vocabulary, settings: BackendSettings) -> None:
        self._settings = settings
        info = xgrammar.TokenizerInfo(
            _texts(vocabulary),
            vocab_size=vocabulary.mask_bits,
            stop_token_ids=list(vocabulary.end_ids) or [vocabulary.mask_bits - 1],
        )
        self._words = vocabulary.mask_words
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._batch = xgrammar.BatchGrammarMatcher(max_threads=max(1, settings.threads))

    def compile(self, kind: str, source: str) -> CompiledGrammar:
        """Compile a source; GrammarError is the library's reason."""
        make: dict[str, Callable[[str], xgrammar.CompiledGrammar]] = {
            "json": self._json,
            "regex": self._regex,
            "ebnf": self._ebnf,
            "structural_tag": self._tag,
        }
        try:
            compiled = make[kind](source)
        except GrammarError:
            raise
        except Exception as error:  # the library raises what it pleases for a bad source
            raise GrammarError(_reason(str(error) or type(error).__name__)) from error
        return _Compiled(compiled, self._words)

    def fill(self, matchers: Sequence[tuple[Matcher, int]], mask: Mask) -> None:
        """Fill rows; several threads share many of them."""
        natives = [(cast(_Matcher, matcher).native, row) for matcher, row in matchers]
        try:
            if len(natives) < FEW_MATCHERS:
                for native, row in natives:
                    native.fill_next_token_bitmask(mask, row)
            else:
                ours, rows = map(list, zip(*natives, strict=True))
                self._batch.batch_fill_next_token_bitmask(ours, mask, rows)
        except RuntimeError as error:
            # Which of them it was is not told; none is of use without its mask.
            for matcher, _ in matchers:
                cast(_Matcher, matcher).error = _reason(str(error))

    def _json(self, source: str) -> xgrammar.CompiledGrammar:
        schema = _parsed(prepared_source(source))
        fit_schema(schema)
        options = JSON_OPTIONS[self._settings.whitespace]
        text = json.dumps(schema)
        return self._compiler.compile_json_schema(text, strict_mode=False, **options)

    def _regex(self, source: str) -> xgrammar.CompiledGrammar:
        check_repeats(source)
        return self._compiler.compile_regex(source)

    def _ebnf(self, source: str) -> xgrammar.CompiledGrammar:
        check_repeats(source)
        if "::=" in source:
            return self._compiler.compile_grammar(source)
        return self._compiler.compile_grammar(xgrammar.Grammar.from_lark(source))

    def _fit(self, form: dict[str, Any]) -> None:
        """Make one format of a structural tag, in place, what its source would be alone."""
        kind = form["type"]
        if kind == "json_schema":
            schema = form.setdefault("json_schema", True)
            prepare(schema)
            fit_schema(schema)
            most = JSON_OPTIONS[self._settings.whitespace].get("max_whitespace_cnt")
            form.setdefault("max_whitespace_cnt", most)
        elif kind == "regex":
            check_repeats(str(form.get("pattern", "")))
        elif kind == "grammar":
            source = str(form.get("grammar", ""))
            check_repeats(source)
            form.setdefault("syntax", "ebnf" if "::=" in source else "lark")

    def _tag(self, source: str) -> xgrammar.CompiledGrammar:
        parsed = _parsed(source)
        if not isinstance(parsed, dict):
            raise GrammarError(f"a structural tag must be a JSON object, got {source[:40]!r}")
        if "structures" in parsed:
            parsed = _newer(parsed)
        for form in _formats_in(parsed):
            self._fit(form)
        return self._compiler.compile_structural_tag(
            json.dumps({"type": "structural_tag", **parsed})
        )


@frozen(eq=False)
class _Compiled:
    _native: xgrammar.CompiledGrammar
    _words: int

    @property
    def size_bytes(self) -> int:
        return int(self._native.memory_size_bytes)

    def matcher(self) -> Matcher:
        return _Matcher(xgrammar.GrammarMatcher(self._native), self._words)


@define(eq=False)
class _Matcher:
    native: xgrammar.GrammarMatcher
    words: int
    error: str | None = field(default=None, init=False)

    @property
    def is_complete(self) -> bool:
        if self.error is not None or not self.native.is_completed():
            return False
        mask = np.zeros((1, self.words), dtype=np.int32)
        self.native.fill_next_token_bitmask(mask, 0)
        for token in self.native.stop_token_ids:
            mask.view(np.uint32)[0, token >> 5] &= ~np.uint32(1 << (token & 31))
        return not mask.any()

    @property
    def can_end(self) -> bool:
        return self.error is None and bool(self.native.is_completed())

    def accept(self, token: int) -> bool:
        if self.error is None and self.native.accept_token(token):
            return True
        self.error = self.error or f"token {token} doesn't satisfy the grammar"
        return False


def _texts(vocabulary: Vocabulary) -> list[bytes]:
    """The bytes of each token; special ones have none, and so are never text."""
    tokenizer = vocabulary.tokenizer
    known, special = min(tokenizer.vocab_size, vocabulary.size), set(tokenizer.special_ids)
    texts = [b"" if token in special else tokenizer.token_bytes(token) for token in range(known)]
    return texts + [b""] * (vocabulary.mask_bits - known)


def _parsed(source: str) -> Any:
    try:
        return json.loads(source)
    except (ValueError, RecursionError) as error:
        raise GrammarError(f"it must be JSON: {error}") from error


def _formats_in(form: Any) -> Iterator[dict[str, Any]]:
    """The formats of a structural tag, wherever they stand; not what schemas hold."""
    if isinstance(form, list):
        for each in form:
            yield from _formats_in(each)
    elif isinstance(form, dict):
        if isinstance(form.get("type"), str):
            yield form
        for name, each in form.items():
            if name != "json_schema":
                yield from _formats_in(each)


def _newer(parsed: dict[str, Any]) -> dict[str, Any]:
    """The form with structures and triggers as a format."""
    tags = [
        {
            "type": "tag",
            "begin": each["begin"],
            "content": {"type": "json_schema", "json_schema": each.get("schema", True)},
            "end": each.get("end", ""),
        }
        for each in parsed["structures"]
    ]
    return {"format": {"type": "triggered_tags", "triggers": parsed["triggers"], "tags": tags}}


def _reason(text: str) -> str:
    short = " ".join(PLACE.sub("", text).split()) or "unknown reason"
    return short if len(short) <= LONGEST_REASON else short[: LONGEST_REASON - 3] + "..."
