# SPDX-License-Identifier: MIT
"""What is used of the `tokenizers` library, which ships no types of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol


class AddedToken(Protocol):
    """A token that is looked for in the text before anything else."""

    content: str
    special: bool


class Encoding(Protocol):
    """The outcome of encoding one text."""

    @property
    def ids(self) -> list[int]:
        """The token ids."""


class Decoder(Protocol):
    """How tokens become text; its settings are only to be had as pickled JSON."""

    def __getstate__(self) -> bytes:
        """Return the settings as JSON."""


class Backend(Protocol):
    """A `tokenizers.Tokenizer`."""

    @property
    def decoder(self) -> Decoder | None:
        """How tokens become text."""

    def encode(self, sequence: str, *, add_special_tokens: bool) -> Encoding:
        """Turn text into tokens."""

    def encode_batch_fast(
        self, texts: Sequence[str], /, *, add_special_tokens: bool
    ) -> Sequence[Encoding]:
        """Turn texts into tokens without their offsets; other threads run meanwhile."""

    def id_to_token(self, token_id: int, /) -> str | None:
        """Return a token as the vocabulary writes it."""

    def token_to_id(self, token: str) -> int | None:
        """Return a token's id."""

    def get_vocab(self, with_added_tokens: bool) -> Mapping[str, int]:
        """Return all tokens and their ids."""

    def get_added_tokens_decoder(self) -> Mapping[int, AddedToken]:
        """Return the added tokens by id."""

    def no_truncation(self) -> None:
        """Never cut a text short."""

    def no_padding(self) -> None:
        """Never make a text longer."""

    def save(self, path: str, pretty: bool) -> None:
        """Write a tokenizer.json."""
