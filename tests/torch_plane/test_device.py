# SPDX-License-Identifier: MIT
"""Which device a rank gets, on hosts with GPUs that this one has not."""

from __future__ import annotations

import pytest
import torch

from tokenspeed_core.errors import ConfigError
from tokenspeed_core.torch_plane.device import choose_device


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with two."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_each_rank_of_a_host_takes_a_gpu_of_its_own(name: str) -> None:
    """By number: torch lets no thread work on a device without one."""
    found = [choose_device(name, local_rank=rank, local_size=2) for rank in range(2)]
    assert found == [torch.device("cuda", 0), torch.device("cuda", 1)]
    assert choose_device(name) == torch.device("cuda", 0)


def test_a_rank_that_is_shown_one_gpu_takes_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with CUDA_VISIBLE_DEVICES set for each."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert choose_device("cuda", local_rank=3, local_size=4) == torch.device("cuda", 0)


@pytest.mark.usefixtures("gpus")
def test_a_named_gpu_is_for_one_rank() -> None:
    """Two ranks on one would not find each other; the error says what to write."""
    assert choose_device("cuda:1") == torch.device("cuda", 1)
    with pytest.raises(ConfigError, match=r"'cuda:1' is one GPU, and 2 ranks run on this host"):
        choose_device("cuda:1", local_rank=1, local_size=2)
    with pytest.raises(ConfigError, match="cuda:2"):
        choose_device("cuda:2")


def test_without_gpus_there_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks for a GPU is told that there is none."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto", local_rank=1, local_size=2) == torch.device("cpu")
    assert choose_device("cpu", local_rank=1, local_size=2) == torch.device("cpu")
    with pytest.raises(ConfigError, match="CPU build"):
        choose_device("cuda")
