# SPDX-License-Identifier: MIT
"""A tokenizer in memory whose tokens are easy to tell: bytes, then words that name their own id.

Ids 0 to 255 are the bytes in the order of their values; from 256 on token i is the word ` i`. The
last two are special: `<|start|>`, which opens a text, and `<|end|>`. Text is encoded byte by byte.
Marks are one token each, of plain text or special; they take the lowest ids, and the bytes of these
are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from tokenspeed_core.models.token_bytes import byte_characters
from tokenspeed_core.models.tokenizer import Tokenizer

START, END = "<|start|>", "<|end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def small_tokenizer(
    *,
    vocab_size: int = 2048,
    template: str | None = CHAT_TEMPLATE,
    marks: Sequence[str] = (),
    special_marks: bool = False,
) -> Tokenizer:
    """Make one; `template` of None is a model without a chat template."""
    backend = _backend(vocab_size, marks)
    if special_marks:
        backend.add_special_tokens(list(marks))
    return Tokenizer(backend, special_tokens={"eos_token": END}, template=template)


def save_small_tokenizer(folder: Path, *, vocab_size: int) -> None:
    """Write one, without a chat template, into a model's folder."""
    _backend(vocab_size).save(str(folder / "tokenizer.json"), pretty=False)


def _backend(vocab_size: int, marks: Sequence[str] = ()) -> tokenizers.Tokenizer:
    alphabet = sorted((byte, character) for character, byte in byte_characters().items())
    alphabet[: len(marks)] = enumerate(marks)
    vocabulary = {character: byte for byte, character in alphabet}
    vocabulary |= {f"\u0120{number}": number for number in range(256, vocab_size - 2)}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([START, END])
    backend.add_tokens(list(marks))
    backend.post_processor = processors.TemplateProcessing(
        single=f"{START} $A", special_tokens=[(START, vocab_size - 2)]
    )
    return backend
