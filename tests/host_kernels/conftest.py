# SPDX-License-Identifier: MIT
"""Both kinds of numbers that kernels know, with their dtypes."""

from __future__ import annotations

import pytest
import torch
from attrs import frozen

from tokenspeed_core.host_kernels.vectors import BFLOAT16, FLOAT32, ElementType


@frozen
class Numbers:
    """A kind, its dtype, and how far results may be from exact ones: half a step, and a bit."""

    kind: ElementType
    dtype: torch.dtype
    tolerance: float


NUMBERS = (Numbers(BFLOAT16, torch.bfloat16, 2**-8), Numbers(FLOAT32, torch.float32, 2e-6))


@pytest.fixture(params=NUMBERS, ids=["bfloat16", "float32"])
def numbers(request: pytest.FixtureRequest) -> Numbers:
    """One of them."""
    found: Numbers = request.param
    return found
