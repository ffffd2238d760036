# SPDX-License-Identifier: MIT
"""When a pause or a memory release may be answered: once nothing it waits for is left.

No collective decides it. Everything read here is mirrored on the replica's ranks, and what a plugin
adds must be so too.
"""

from __future__ import annotations

from tokenspeed_core.loop.controls import Controls, Drain
from tokenspeed_core.loop.gate import Gate
from tokenspeed_core.loop.parts import LoopParts
from tokenspeed_hookspecs import Round

CACHE_REGION = "kv_cache"


class Drains:
    """Asked once a round, after its feedback and outputs."""

    def __init__(self, parts: LoopParts, controls: Controls, *, gate: Gate) -> None:
        self._scheduler = parts.scheduler
        self._plane = parts.data_plane
        self._blocked = parts.hooks.drain_blocked
        self._log = parts.log
        self._controls = controls
        self._gate = gate

    def finish(self, round: Round, *, num_in_flight: int) -> None:
        """Carry out and answer the operation that waits, if the engine is empty."""
        drain = self._controls.drain
        if drain is None or num_in_flight or not self._is_over(drain, round):
            return
        if drain.regions:
            self._plane.release_memory(drain.regions)
            self._log.info("released memory: %s", ", ".join(drain.regions))
        self._controls.finish_drain()

    def _is_over(self, drain: Drain, round: Round) -> bool:
        sizes = self._scheduler.sizes
        if sizes.waiting or sizes.decoding or sizes.prefilling:
            return False
        if self._blocked is not None and self._blocked(round):
            return False
        if not drain.regions:
            return True
        # A gated operation still writes the weights. Clearing comes last, because it changes the
        # index; while something pins a page it does nothing, and is tried again in the next round.
        if self._gate.is_busy:
            return False
        if CACHE_REGION not in drain.regions or CACHE_REGION in self._controls.released:
            return True
        return self._scheduler.clear_device_cache()
