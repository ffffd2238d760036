# SPDX-License-Identifier: MIT
"""Logprobs as clients get them: always a finite number, since JSON knows no other."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

LOWEST_LOGPROB = -9999.0  # what OpenAI's servers report for a token that cannot be drawn


def finite(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """The values as float64; minus infinity and NaN become `LOWEST_LOGPROB`."""
    found = np.asarray(values, dtype=np.float64)
    return np.where(np.isfinite(found), found, LOWEST_LOGPROB)
