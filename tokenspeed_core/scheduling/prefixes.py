# SPDX-License-Identifier: MIT
"""How much of a waiting prompt lies in pages that a running request already holds.

Such pages cost nothing to share, and without counting them a busy engine whose requests open alike
would run a fraction of what fits. Only an estimate: the wheel decides, and a request handed over
too early waits inside it.
"""

from __future__ import annotations

from itertools import islice

import numpy as np
import numpy.typing as npt
from attrs import define, field

from tokenspeed_core.scheduling.population import Tracked

NUM_COMPARED = 8  # of the running requests that open with the same page, the latest


@define(eq=False)
class RunningPrefixes:
    """The prompts of the requests whose prompt is computed, found by their first page."""

    page_size: int
    _by_opening: dict[tuple[int, ...], dict[str, Tracked]] = field(factory=dict)

    def add(self, request: Tracked) -> None:
        """The request's prompt lies in pages now."""
        opening = self._opening(request)
        self._by_opening.setdefault(opening, {})[request.request_id] = request

    def discard(self, request: Tracked) -> None:
        """The request gives its pages back, if it had any."""
        alike = self._by_opening.get(self._opening(request))
        if alike is not None and alike.pop(request.request_id, None) is not None and not alike:
            del self._by_opening[self._opening(request)]

    def shared_tokens(self, request: Tracked) -> int:
        """Tokens of the prompt in whole pages of some running request; one is always computed."""
        alike = self._by_opening.get(self._opening(request))
        if not alike:
            return 0
        own = _tokens(request)
        latest = islice(reversed(alike.values()), NUM_COMPARED)
        longest = max(_common_length(own, _tokens(other)) for other in latest)
        most = min(longest, len(own) - 1, request.max_shared)
        return most // self.page_size * self.page_size

    def _opening(self, request: Tracked) -> tuple[int, ...]:
        return tuple(request.prompt_ids[: self.page_size])


def _tokens(request: Tracked) -> npt.NDArray[np.int32]:
    if request.prompt is None:
        request.prompt = np.fromiter(request.prompt_ids, np.int32, request.num_prompt)
    return request.prompt


def _common_length(first: npt.NDArray[np.int32], second: npt.NDArray[np.int32]) -> int:
    length = min(len(first), len(second))
    differs = first[:length] != second[:length]
    place = int(differs.argmax())
    return place if differs[place] else length
