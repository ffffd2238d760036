# SPDX-License-Identifier: MIT
"""Random numbers that depend on a request's seed and on how far its output is, on nothing else.

Each draw is a hash of the two numbers, so there is no generator state to keep, to snapshot or to
share: a request samples alike alone and among others, before and after a retraction, on any device.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

# The constants of the splitmix64 generator.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_SHIFTS = (np.uint64(30), np.uint64(27), np.uint64(31))
SEED_MASK = (1 << 64) - 1


def seed_of(request_id: str, seed: int | None) -> int:
    """Return the seed as 64 bits; without one, the CRC-32 of the request id."""
    if seed is None:
        return zlib.crc32(request_id.encode("utf-8", "surrogatepass"))
    return seed & SEED_MASK


def uniforms(
    seeds: npt.NDArray[np.uint64], indices: npt.NDArray[np.int64]
) -> npt.NDArray[np.float64]:
    """Return one number in (0, 1) a row, float64 [n], for output token `indices` of `seeds`."""
    keys = _mix(seeds + _STEP)
    bits = _mix(keys + (indices.astype(np.uint64) + np.uint64(1)) * _STEP)
    # 32 bits leave room below 1, so that a product with a rounded total stays under that total.
    return ((bits >> np.uint64(32)).astype(np.float64) + 0.5) / float(1 << 32)


def _mix(state: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    state = (state ^ (state >> _SHIFTS[0])) * _FACTORS[0]
    state = (state ^ (state >> _SHIFTS[1])) * _FACTORS[1]
    return state ^ (state >> _SHIFTS[2])
