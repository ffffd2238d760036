# SPDX-License-Identifier: MIT
"""The true bytes of each token, whatever alphabet a vocabulary writes them in.

Two alphabets are known. Byte-level vocabularies write each byte as one printable
character. SentencePiece-like ones write text with a visible mark for the space, and a
byte that has no token of its own as `<0xE4>`.
"""

from __future__ import annotations

import json
import re
from enum import Enum

from attrs import define, field

from tokenspeed_core.models.backend import Backend
from tokenspeed_core.models.errors import ModelError

BYTE_TOKEN = re.compile(r"^<0x([0-9A-Fa-f]{2})>$")
SPACE_MARK = "\u2581"
PRINTABLE = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))


class Alphabet(Enum):
    """How the vocabulary writes bytes."""

    BYTE_LEVEL = "byte level"
    BYTE_FALLBACK = "space mark and byte fallback"


def byte_characters() -> dict[str, int]:
    """Return the character a byte-level vocabulary writes for each byte, as GPT-2 chose them."""
    characters = {chr(byte): byte for byte in PRINTABLE}
    others = (byte for byte in range(256) if byte not in PRINTABLE)
    return characters | {chr(256 + number): byte for number, byte in enumerate(others)}


@define
class TokenBytes:
    """Bytes by token id; filled as ids are asked for, because vocabularies are large."""

    _backend: Backend
    alphabet: Alphabet
    strips_leading_space: bool
    _added: dict[int, bytes]
    _known: dict[int, bytes] = field(factory=dict, init=False)
    _byte_of: dict[str, int] = field(factory=byte_characters, init=False)

    def of(self, token_id: int) -> bytes:
        """Return a token's bytes; an id without a token has none."""
        found = self._known.get(token_id)
        if found is None:
            found = self._known[token_id] = self._spell(token_id)
        return found

    def _spell(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id]
        token = self._backend.id_to_token(token_id) if token_id >= 0 else None
        if token is None:
            return b""
        if self.alphabet is Alphabet.BYTE_LEVEL:
            if all(character in self._byte_of for character in token):
                return bytes(self._byte_of[character] for character in token)
            return token.encode()
        if match := BYTE_TOKEN.match(token):
            return bytes([int(match[1], 16)])
        return token.replace(SPACE_MARK, " ").encode()


def read_token_bytes(backend: Backend, where: str) -> TokenBytes:
    """Find out which alphabet a tokenizer's decoder stands for; ModelError if it is another."""
    parts = _decoder_parts(backend)
    kinds = [part["type"] for part in parts]
    added = {
        token_id: token.content.encode()
        for token_id, token in backend.get_added_tokens_decoder().items()
    }
    if kinds == ["ByteLevel"]:
        return TokenBytes(backend, Alphabet.BYTE_LEVEL, strips_leading_space=False, added=added)
    if kinds in (["Replace", "ByteFallback", "Fuse"], ["Replace", "ByteFallback", "Fuse", "Strip"]):
        return TokenBytes(
            backend, Alphabet.BYTE_FALLBACK, strips_leading_space="Strip" in kinds, added=added
        )
    raise ModelError(
        f"{where}: decoder {' + '.join(map(str, kinds)) or 'none'} is not supported; "
        f"expected ByteLevel, or Replace + ByteFallback + Fuse (+ Strip)"
    )


def _decoder_parts(backend: Backend) -> list[dict[str, object]]:
    if backend.decoder is None:
        return []
    settings = json.loads(backend.decoder.__getstate__())
    parts: list[dict[str, object]] = settings.get("decoders", [settings])
    return parts
