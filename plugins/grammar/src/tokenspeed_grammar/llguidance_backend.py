# SPDX-License-Identifier: MIT
"""Grammars by llguidance: an Earley parser over a lazily built lexer, with limits of its own.

Compiling takes milliseconds, because automata grow while they are used; what would grow too far
becomes an error of the compile or of its one request. What the library does not implement of a JSON
schema it refuses.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, cast

import llguidance
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
from tokenspeed_grammar.limits import check_multiples
from tokenspeed_grammar.schemas import prepared_source
from tokenspeed_grammar.structural_tags import TagWriter, as_lark, pattern_in_lark

LONGEST_REASON = 600
# A grammar's automata grow with use; this is what the measured ones settle at.
BASE_BYTES = 64 * 1024
BYTES_PER_CHARACTER = 40
FEW_MATCHERS = 4
JSON_OPTIONS: dict[Whitespace, dict[str, Any]] = {
    Whitespace.NONE: {"whitespace_flexible": False},
    Whitespace.SOME: {"whitespace_pattern": r"[ ]?(\r?\n[ \t]{0,32})?"},
    Whitespace.ANY: {"whitespace_flexible": True},
}
# What one mask may cost at most, about 5 ms; the library's own limits let one take 80 ms, for which
# every other request would wait. A request whose grammar needs more ends with an error.
LIMITS: dict[str, Any] = {
    "step_lexer_fuel": 50_000,
    "step_max_items": 20_000,
    "max_lexer_states": 50_000,
    "verbose_errors": False,
}


class LLGuidanceBackend:
    """See the module."""

    def __init__(self, vocabulary: Vocabulary, settings: BackendSettings) -> None:
        self._settings = settings
        self._tokenizer = _tokenizer(vocabulary)
        self._special_ids = _special_texts(vocabulary)
        self._executor = llguidance.LLExecutor(num_threads=max(1, settings.threads))

    def compile(self, kind: str, source: str) -> CompiledGrammar:
        """Compile a source; GrammarError is the library's reason."""
        grammar = self._grammar(kind, source)
        matcher = llguidance.LLMatcher(
            self._tokenizer,
            grammar,
            log_level=0,
            limits=llguidance.LLParserLimits(**LIMITS),
        )
        if matcher.is_error():
            raise GrammarError(_reason(matcher.get_error()))
        return _Compiled(matcher, BASE_BYTES + BYTES_PER_CHARACTER * len(grammar))

    def fill(self, matchers: Sequence[tuple[Matcher, int]], mask: Mask) -> None:
        """Fill rows; several threads share many of them."""
        pointer, row_bytes = mask.ctypes.data, mask.strides[0]
        ours = [(cast(_Matcher, matcher), row) for matcher, row in matchers]
        if len(ours) < FEW_MATCHERS:
            for matcher, row in ours:
                matcher.native.unsafe_compute_mask_ptr(pointer + row * row_bytes, row_bytes)
        else:
            natives = [(matcher.native, row) for matcher, row in ours]
            self._executor.unsafe_compute_mask_ptr(natives, pointer, row_bytes, len(mask))
        for matcher, _ in ours:
            if matcher.native.is_error():
                matcher.error = _reason(matcher.native.get_error())

    def _grammar(self, kind: str, source: str) -> str:
        if kind != "regex":
            check_multiples(source)
        options: Any = JSON_OPTIONS[self._settings.whitespace]
        try:
            if kind == "json":
                source = prepared_source(_object_schema(source))
                return llguidance.LLMatcher.grammar_from_json_schema(source, defaults=options)
            if kind == "regex":
                lark = f"start: {pattern_in_lark(source)}"
                return llguidance.LLMatcher.grammar_from_lark(lark)
            if kind == "ebnf":
                return llguidance.LLMatcher.grammar_from_lark(as_lark(source))
            return TagWriter(self._special_ids, options).structural_tag(source)
        except GrammarError:
            raise
        except Exception as error:  # the converters raise what they please for a bad source
            raise GrammarError(_reason(str(error) or type(error).__name__)) from error


def _object_schema(source: str) -> str:
    """A schema as an object, as which the library wants it."""
    plain = source.strip()
    if plain == "true":
        return "{}"
    if plain == "false":
        raise GrammarError("nothing follows the schema false")
    if not plain.startswith("{"):
        raise GrammarError(f"a JSON schema must be an object or a boolean, got {plain[:40]!r}")
    return source


@frozen(eq=False)
class _Compiled:
    _prototype: llguidance.LLMatcher
    size_bytes: int

    def matcher(self) -> Matcher:
        return _Matcher(self._prototype.deep_copy())


@define(eq=False)
class _Matcher:
    native: llguidance.LLMatcher
    error: str | None = field(default=None, init=False)

    @property
    def is_complete(self) -> bool:
        return self.native.is_stopped() and not self.native.is_error()

    @property
    def can_end(self) -> bool:
        return self.native.is_accepting()

    def accept(self, token: int) -> bool:
        if self.native.consume_token(token):
            return True
        self.error = _reason(self.native.get_error())
        return False


class _Tokens:
    """The vocabulary as the library asks for it: bytes by id, and how to encode."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        tokenizer, num_tokens = vocabulary.tokenizer, vocabulary.mask_bits
        known = min(tokenizer.vocab_size, vocabulary.size)
        # Ids without a token have no bytes, and so may never follow.
        self.tokens = [tokenizer.token_bytes(token) for token in range(known)]
        self.tokens += [b""] * (num_tokens - known)
        self.special_token_ids = sorted(tokenizer.special_ids)
        self.bos_token_id = None
        self.unk_token_id = None
        self.eos_token_id = vocabulary.end_ids[0] if vocabulary.end_ids else num_tokens - 1
        self._tokenizer = tokenizer

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode()
        return self._tokenizer.encode(text, add_special=False)


def _tokenizer(vocabulary: Vocabulary) -> llguidance.LLTokenizer:
    """The library wants an end token; a model without one gets an id behind its vocabulary."""
    last = vocabulary.mask_bits - 1
    return llguidance.LLTokenizer(
        llguidance.TokenizerWrapper(_Tokens(vocabulary)),
        n_vocab=vocabulary.mask_bits,
        eos_token=list(vocabulary.end_ids) or [last],
    )


def _special_texts(vocabulary: Vocabulary) -> dict[str, int]:
    spelled = vocabulary.tokenizer.token_bytes
    return {spelled(token).decode(): token for token in vocabulary.tokenizer.special_ids}


def _reason(text: str) -> str:
    """The library's message without its drawings of the source."""
    lines = [line.strip() for line in text.splitlines()]
    kept = [line for line in lines if line and not re.fullmatch(r"(\d+ \|.*)|\^+", line)]
    short = " ".join(kept) or "unknown reason"
    return short if len(short) <= LONGEST_REASON else short[: LONGEST_REASON - 3] + "..."
