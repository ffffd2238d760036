# SPDX-License-Identifier: MIT
"""The scripted plane's side: a constrained row samples the lowest token its grammar allows."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from attrs import define, field

from tokenspeed_grammar.backend import Matcher
from tokenspeed_grammar.live import Endings, LiveGrammars
from tokenspeed_hookspecs import AdmittedRequest, Batch, FinishReason


@define(eq=False)
class ScriptedGrammar:
    """The plugin's extension of the scripted plane."""

    name: str
    live: LiveGrammars
    _endings: deque[tuple[Batch, Endings]] = field(factory=deque, init=False)

    def on_admit(self, requests: Sequence[AdmittedRequest]) -> None:
        """Learn of requests."""
        self.live.admit(requests)

    def on_release(self, request_ids: Sequence[str]) -> None:
        """Forget requests."""
        self.live.release(request_ids)

    def prepare_inputs(self, batch: Batch, matchers: Sequence[tuple[str, Matcher]]) -> None:
        """Take the matchers of requests that may run from now on."""
        self.live.attach(matchers)

    def sampled(self, batch: Batch, tokens: npt.NDArray[np.int64]) -> None:
        """Replace the tokens of constrained rows, and go on by them."""
        rows = self.live.rows(batch)
        if not rows:
            return
        mask = self.live.fill(rows)
        allowed = np.unpackbits(mask.view(np.uint8), axis=1, bitorder="little")
        places = [each.row for each in rows]
        tokens[places] = allowed[:, : self.live.vocabulary.size].argmax(axis=1)
        self._endings.append((batch, self.live.advance(rows, tokens[places].tolist())))

    def endings(self, batch: Batch) -> Mapping[int, FinishReason]:
        """The requests that this forward ends."""
        if not self._endings or self._endings[0][0] is not batch:
            return {}
        return self._endings.popleft()[1]
