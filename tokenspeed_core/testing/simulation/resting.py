# SPDX-License-Identifier: MIT
"""Time for the threads of guests, which no baton stops.

A round with nothing to do gives them a moment, and does not count as one until they had many: how
long they take is the machine's matter, so no outcome may depend on it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from attrs import define

from tokenspeed_core.testing.engine import EngineFixture

NAP_S, MOST_NAP_S = 0.0005, 0.002  # and what one counts for, however long it took
_nap, _now = time.sleep, time.monotonic


@define(eq=False)
class Rest:
    """`num_rounds` are those that do not count, within `patience_s` of naps."""

    patience_s: float
    num_rounds: int = 0
    _napped_s: float = 0.0

    def take(self, engines: Sequence[EngineFixture]) -> None:
        """After a round: nap if nothing happened, else let others run that are ready."""
        if any(map(_did_something, engines)) or all(engine.is_quiet for engine in engines):
            _nap(0)
            return
        begin = _now()
        _nap(NAP_S)
        self._napped_s += min(_now() - begin, MOST_NAP_S)
        self.num_rounds += self._napped_s < self.patience_s


def _did_something(engine: EngineFixture) -> bool:
    last = engine.loop.last_round
    return last.batch is not None or last.num_outputs > 0
