# SPDX-License-Identifier: MIT
"""The logprobs of a prompt, gathered over its chunks and shipped once.

Position q's row predicts prompt token q + 1. A prompt that is computed again after a retraction
writes the same slots again; after `finalise` nothing changes any more.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tokenspeed_core.errors import EngineError
from tokenspeed_core.requests.logprob_values import finite
from tokenspeed_hookspecs import Alternatives, PromptLogprobs, TokenAlternatives


class PromptScores:
    """Scores of positions `start` to the last but one of a prompt of `prompt_ids`."""

    def __init__(self, prompt_ids: Sequence[int], start: int, *, top: int) -> None:
        self.start = start
        self.top = top
        self._prompt_ids = prompt_ids
        count = len(prompt_ids) - 1 - start
        self._values: npt.NDArray[np.float64] = np.zeros(count)
        self._known = np.zeros(count, dtype=bool)
        self._alternatives: list[TokenAlternatives | None] = [None] * count if top else []
        self._finalised: PromptLogprobs | None = None
        self._shipped = False

    @property
    def needs_rows(self) -> bool:
        """Whether positions are still to be scored."""
        return self._finalised is None and len(self._values) > 0

    def span(self, prefix: int, length: int) -> tuple[int, int]:
        """The scored positions [first, last) of a chunk at `prefix` with `length` inputs."""
        if not self.needs_rows:
            return prefix, prefix
        first = max(prefix, self.start)
        last = min(prefix + length, len(self._prompt_ids) - 1)
        return first, max(first, last)

    def place(
        self,
        position: int,
        values: npt.NDArray[np.float32],
        *,
        alternatives: Alternatives | None,
    ) -> None:
        """Keep scores of consecutive positions, the first of which is `position`."""
        if self._finalised is not None:
            return
        at = position - self.start
        self._values[at : at + len(values)] = finite(values)
        self._known[at : at + len(values)] = True
        if self.top and alternatives is not None:
            rows = zip(
                finite(alternatives.logprobs[:, : self.top]).tolist(),
                alternatives.token_ids[:, : self.top].tolist(),
                strict=True,
            )
            self._alternatives[at : at + len(values)] = list(rows)

    def finalise(self, request_id: str) -> None:
        """The prompt is complete: every position must have been scored."""
        if self._finalised is not None:
            return
        if not self._known.all():
            missing = self.start + int(np.argmin(self._known))
            raise EngineError(
                f"prompt logprobs of request {request_id!r}: position {missing} was never scored; "
                f"expected {len(self._known)} positions from {self.start} on. The forwards that "
                "computed the prompt skipped a chunk."
            )
        self._finalised = PromptLogprobs(
            values=[None, *self._values.tolist()],
            token_ids=[int(token) for token in self._prompt_ids[self.start :]],
            alternatives=[None, *self._alternatives] if self.top else None,
        )

    def take(self) -> PromptLogprobs | None:
        """The finished scores, the first time they are asked for."""
        if self._finalised is None or self._shipped:
            return None
        self._shipped = True
        return self._finalised
