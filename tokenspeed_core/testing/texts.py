# SPDX-License-Identifier: MIT
"""The text of each admitted request, prompt and sampled tokens, with a fingerprint a position."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Cells = npt.NDArray[np.uint64]
_BASE = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


class Text:
    """One request's tokens. The fingerprint of a position covers every token up to it."""

    def __init__(self, request_id: str, prompt_ids: Sequence[int]) -> None:
        self.request_id = request_id
        self.tokens: list[int] = []
        self._last = 1
        self._prints: list[int] = []
        for token in prompt_ids:
            self.append(int(token))

    def __len__(self) -> int:
        return len(self.tokens)

    def append(self, token: int) -> None:
        """Add the next token."""
        self.tokens.append(token)
        self._last = (self._last * _BASE + token + 1) & _MASK
        self._prints.append(self._last or 1)

    def fingerprints(self, start: int, end: int) -> Cells:
        """uint64 [end - start], never 0, which an empty cell holds."""
        return np.array(self._prints[start:end], dtype=np.uint64)

    def expect(self, start: int, fed: Sequence[int], *, what: str) -> None:
        """Raise unless the fed tokens are this text's; -1 stands for one still on the device."""
        own = self.tokens[start : start + len(fed)]
        matches = (token in (-1, mine) for token, mine in zip(fed, own, strict=False))
        if len(own) != len(fed) or not all(matches):
            raise AssertionError(
                f"{what}: expected tokens {own[:8]} of {self.request_id!r} from position {start}, "
                f"got {list(fed[:8])}"
            )

    def expect_shifted(self, start: int, shifted: Sequence[int], *, what: str) -> None:
        """Raise unless these are the tokens after each position, -1 from the text's end on."""
        own = self.tokens[start + 1 : start + 1 + len(shifted)]
        own += [-1] * (len(shifted) - len(own))
        if list(shifted) != own:
            raise AssertionError(
                f"{what}: expected {own[-8:]} at the end for {self.request_id!r}, got "
                f"{list(shifted[-8:])}"
            )


class TextBook(dict[str, Text]):
    """The texts of the admitted requests by id."""

    def admit(self, request_id: str, prompt_ids: Sequence[int]) -> None:
        """Begin a request's text with its prompt."""
        self[request_id] = Text(request_id, prompt_ids)
