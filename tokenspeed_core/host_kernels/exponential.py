# SPDX-License-Identifier: MIT
"""The exponential function in steps that fit vectors; the C library's takes one at a time."""

from __future__ import annotations

import numpy as np

from tokenspeed_core.host_kernels.team import compiled
from tokenspeed_core.host_kernels.vectors import held_between, power_of_two, to_nearest

_LOG2_E = np.float32(1.4426950408889634)
# ln 2 in two parts, the first with few enough digits that its multiples are exact.
_LN2_HIGH, _LN2_LOW = np.float32(0.693145751953125), np.float32(1.428606765330187e-06)
# 1/n! for n from 7 to 2: with |r| at most ln(2)/2 the next term is below 6e-9.
_C7, _C6, _C5 = np.float32(1 / 5040), np.float32(1 / 720), np.float32(1 / 120)
_C4, _C3, _C2 = np.float32(1 / 24), np.float32(1 / 6), np.float32(1 / 2)
_ONE = np.float32(1)
_LEAST, _MOST = np.float32(-87), np.float32(88)


@compiled
def exponential(x: np.float32) -> np.float32:
    """e^x in float32, held between e^-87 and e^88; no number where x is none.

    x = n ln 2 + r, e^r by Taylor's series.
    """
    held = held_between(x, _LEAST, _MOST)
    n = to_nearest(held * _LOG2_E)
    r = (held - n * _LN2_HIGH) - n * _LN2_LOW
    p = ((((_C7 * r + _C6) * r + _C5) * r + _C4) * r + _C3) * r + _C2
    p = (p * r + _ONE) * r + _ONE
    found: np.float32 = p * power_of_two(np.int32(n)) if x == x else x
    return found
