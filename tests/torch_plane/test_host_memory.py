# SPDX-License-Identifier: MIT
"""Big tensors in host memory lie where the system may use huge pages."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tokenspeed_core.torch_plane.host_memory import HUGE_PAGE, locked_zeros, mapped_zeros


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


def test_locked_memory_is_as_large_as_asked_for_and_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three functions of CUDA are stood in for: it locks exactly the tensor, and lets go of it."""
    locked: dict[int, int] = {}

    def lock(address: int, size: int, flags: int) -> int:
        locked[address] = size
        return flags

    runtime = SimpleNamespace(cudaHostRegister=lock, cudaHostUnregister=locked.pop)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "check_error", lambda code: None)
    zeros = locked_zeros((3, 1000), torch.float32)
    assert locked == {zeros.data_ptr(): 3 * 1000 * 4}
    assert not zeros.any()
    del zeros
    gc.collect()
    assert locked == {}
