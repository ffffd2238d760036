# SPDX-License-Identifier: MIT
"""Giving the memory of the KV cache and of the weights back to the system, and taking it again.

Everything here runs on the plane's thread. The pages' contents are lost; the weights come back as
they were, also when they had been replaced at run time. The host pool is no part of it: it is the
tier that outlives a release.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tokenspeed_core.torch_plane.host_memory import give_back_freed_memory
from tokenspeed_core.torch_plane.runner import Runner
from tokenspeed_core.torch_plane.weights_aside import WeightsAside

KV_CACHE, WEIGHTS = "kv_cache", "weights"
# In the order of a release; a resume runs the other way round.
REGIONS = (KV_CACHE, WEIGHTS)


class Memory:
    """The regions of one runner. A region is released once, then resumed once, and so on."""

    def __init__(self, runner: Runner, aside: WeightsAside) -> None:
        self._runner = runner
        self._aside = aside

    def release(self, regions: Sequence[str]) -> None:
        """Free these regions, one after another; EngineError if the weights cannot be kept."""
        for region in regions:
            assert region not in self._runner.released, f"{region} is released already"
            if region == KV_CACHE:
                self._release_cache()
            else:
                self._release_weights()
            self._runner.released.add(region)
        give_back(self._runner.decoder.device)

    def resume(self, regions: Sequence[str]) -> None:
        """Take these regions again; ModelError if the weights' files are no longer there."""
        for region in regions:
            assert region in self._runner.released, f"{region} is not released"
            if region == KV_CACHE:
                self._runner.pools.take_device()
            else:
                self._aside.take(self._runner.decoder.weights)
            self._runner.released.remove(region)
        # Loading leaves as much again behind, in pieces.
        give_back(self._runner.decoder.device)

    def _release_cache(self) -> None:
        # The decoder plans over these pages.
        self._runner.decoder.planner = None
        self._runner.pools.drop_device()

    def _release_weights(self) -> None:
        decoder = self._runner.decoder
        self._aside.put(decoder.weights, dtype=decoder.dtype, device=decoder.device)
        decoder.weights.drop()


def give_back(device: torch.device) -> None:
    """Hand memory that was freed to the system."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        give_back_freed_memory()
