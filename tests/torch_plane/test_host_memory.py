# SPDX-License-Identifier: MIT
"""Big tensors in host memory lie where the system may use huge pages."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from tokenspeed_core.torch_plane.host_memory import HUGE_PAGE, mapped_zeros


def mapping_of(address: int) -> tuple[str, list[str]]:
    """Permissions and flags of the mapping an address is in, as the kernel tells them."""
    permissions = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if "-" in first and not first.endswith(":"):
            start, stop = (int(bound, 16) for bound in first.split("-"))
            permissions = rest[0] if start <= address < stop else ""
        elif permissions and first == "VmFlags:":
            return permissions, rest
    raise AssertionError(f"no mapping holds {address:#x}")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")
def test_big_zeros_are_private_memory_that_may_have_huge_pages() -> None:
    """Shared memory has them only where the system's owner chose so, and most did not."""
    zeros = mapped_zeros((3, HUGE_PAGE), torch.float32)
    assert not zeros.any()
    permissions, flags = mapping_of(zeros.data_ptr())
    assert permissions == "rw-p"
    assert "hg" in flags
    assert zeros.data_ptr() % HUGE_PAGE == 0
