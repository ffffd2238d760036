# SPDX-License-Identifier: MIT
"""The tokenizer of a GGUF file, rebuilt so that it cuts text as llama.cpp does.

A GGUF holds the vocabulary and the merges, and names the rule by which text is cut into
words before merging. That rule decides the ids; each one known here is spelled out.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from tokenspeed_core.models.backend import Backend
from tokenspeed_core.models.errors import ModelError
from tokenspeed_core.models.gguf_file import GgufFile

QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_WORDS = QWEN2_WORDS.replace(r"|\p{N}|", r"|\p{N}{1,3}|")

Step = Any  # boundary: the stubs of tokenizers have no common type for these


class TokenKind(IntEnum):
    """What a GGUF says of each token."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def gpt2_words() -> Step:
    """Cut as GPT-2 did."""
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def smollm_words() -> Step:
    """Cut each digit off first, then as GPT-2 did."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, gpt2_words()])


def pattern_words(pattern: str) -> Step:
    """Cut where a pattern says."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


WORD_RULES: dict[str, Callable[[], Step]] = {
    "smollm": smollm_words,
    "gpt-2": gpt2_words,
    "qwen2": lambda: pattern_words(QWEN2_WORDS),
    "llama-bpe": lambda: pattern_words(LLAMA3_WORDS),
}


def build_tokenizer(file: GgufFile) -> Backend:
    """Build the tokenizer; a ModelError names a kind or a word rule that is not known."""
    rule = _word_rule(file)
    tokens: list[str] = file.setting("tokenizer.ggml.tokens")
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise ModelError(f"{file.path}: its vocabulary has the same token twice")
    merges = [tuple(line.split(" ", 1)) for line in file.setting("tokenizer.ggml.merges")]
    try:
        # Llama 3 takes a word that is a token as it is, without replaying the merges.
        model = BPE(vocabulary, merges, ignore_merges=rule == "llama-bpe")
    except Exception as error:  # the library raises plain Exception for any bad merge
        raise ModelError(f"{file.path}: its merges do not fit its vocabulary ({error})") from error
    built: Step = tokenizers.Tokenizer(model)
    if rule == "qwen2":
        built.normalizer = normalizers.NFC()
    built.pre_tokenizer = WORD_RULES[rule]()
    built.decoder = decoders.ByteLevel()
    _add_tokens(built, file, tokens=tokens)
    if file.setting("tokenizer.ggml.add_bos_token", rule == "llama-bpe"):
        _put_start_token(built, file, tokens=tokens)
    tokenizer: Backend = built
    return tokenizer


def tokenizer_settings(file: GgufFile) -> dict[str, object]:
    """Return the content of tokenizer_config.json, chat template included."""
    tokens: list[str] = file.setting("tokenizer.ggml.tokens")
    settings: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": file.setting(f"{file.architecture}.context_length"),
    }
    roles = (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"))
    for role, key in (*roles, ("pad_token", "padding")):
        if file.has(name := f"tokenizer.ggml.{key}_token_id"):
            settings[role] = tokens[file.setting(name)]
    if file.has("tokenizer.chat_template"):
        settings["chat_template"] = file.setting("tokenizer.chat_template")
    return settings


def _word_rule(file: GgufFile) -> str:
    kind = file.setting("tokenizer.ggml.model")
    rule = file.setting("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or rule not in WORD_RULES:
        raise ModelError(
            f"{file.path}: tokenizer {kind!r} with word rule {rule!r} is not supported, only "
            f"'gpt2' with {', '.join(WORD_RULES)}; use the model's Hugging Face folder instead"
        )
    return str(rule)


def _add_tokens(built: Step, file: GgufFile, *, tokens: list[str]) -> None:
    kinds = list(zip(tokens, file.setting("tokenizer.ggml.token_type"), strict=True))
    control = [token for token, kind in kinds if kind == TokenKind.CONTROL]
    defined = [token for token, kind in kinds if kind == TokenKind.USER_DEFINED]
    built.add_special_tokens([AddedToken(token, normalized=False) for token in control])
    built.add_tokens([AddedToken(token, normalized=False) for token in defined])


def _put_start_token(built: Step, file: GgufFile, *, tokens: list[str]) -> None:
    number: int = file.setting("tokenizer.ggml.bos_token_id")
    start = tokens[number]
    # A template knows tokens by name only where a name holds no character of its own syntax.
    built.post_processor = processors.TemplateProcessing(
        single=["start", "$A"],
        pair=["start", "$A", "start", "$B"],
        special_tokens=[{"id": "start", "ids": [number], "tokens": [start]}],
    )
