# SPDX-License-Identifier: MIT
"""Which token ends a request, and how: the first rule that applies is final."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from tokenspeed_core.requests.state import RequestState
from tokenspeed_hookspecs import FinishKind, FinishReason

DecodeText = Callable[[Sequence[int]], str]


class FinishRules:
    """The end tokens of the model and how to read text, for stop strings."""

    def __init__(
        self, vocab_size: int, eos_token_ids: Sequence[int], *, decode_text: DecodeText | None
    ) -> None:
        self._eos = frozenset(eos_token_ids)
        self._decode_text = decode_text
        self._is_eos = np.zeros(vocab_size, dtype=bool)
        self._is_eos[list(self._eos)] = True

    @property
    def has_eos(self) -> bool:
        """Whether the model has end tokens at all."""
        return bool(self._eos)

    def hits_eos(self, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which tokens are end tokens of the model."""
        return self._is_eos.take(tokens, mode="clip")

    def after_token(self, state: RequestState) -> FinishReason | None:
        """How the request ends with the token just appended, or None."""
        token = state.output_ids[-1]
        if len(state.output_ids) >= state.budget:
            return FinishReason(FinishKind.LENGTH, length=state.budget)
        if state.stops_on_eos and (token in self._eos or token in state.sampling.stop_token_ids):
            return FinishReason(FinishKind.STOP, matched=token)
        return self._stop_string(state) if state.sampling.stop else None

    def _stop_string(self, state: RequestState) -> FinishReason | None:
        """Look for a stop string in the tail of the output.

        A token holds at least one byte unless it decodes to nothing, so the longest string in bytes
        bounds the tokens it can span; one more lets it begin inside a token.
        """
        if self._decode_text is None:
            return None
        window = max(len(text.encode("utf-8", "replace")) for text in state.sampling.stop) + 1
        tail = self._decode_text(state.output_ids[-window:])
        found = next((text for text in state.sampling.stop if text in tail), None)
        return None if found is None else FinishReason(FinishKind.STOP, matched=found)
