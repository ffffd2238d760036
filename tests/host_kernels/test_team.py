# SPDX-License-Identifier: MIT
"""Kernels run on torch's threads, each item once."""

from __future__ import annotations

import logging

import pytest
import torch

from tokenspeed_core.errors import EngineError
from tokenspeed_core.host_kernels.team import (
    LEAST_SHARED_WORK,
    Kernel,
    arguments_at,
    own_share,
    useful_threads,
)
from tokenspeed_core.host_kernels.vectors import FLOAT32, reader, writer

read, write = reader(FLOAT32), writer(FLOAT32)


def count_up(address: int) -> None:
    """Add one to each of the numbers."""
    numbers, count = arguments_at(address)[:2]
    first, last = own_share(count)
    for i in range(first, last):
        write(numbers, i, read(numbers, i) + 1)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_each_item_is_somebody_s_once(threads: int) -> None:
    """However many threads share however many items."""
    kernel = Kernel(count_up, num_arguments=2)
    for count in (0, 1, 2, 7, 100):
        numbers = torch.zeros(count + 1)
        kernel(numbers.data_ptr(), count, threads=threads)
        assert numbers.tolist() == [1.0] * count + [0.0]


def test_small_work_wakes_nobody() -> None:
    """Threads are torch's, all of them, or one for little work."""
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        assert useful_threads(4, LEAST_SHARED_WORK // 4 - 1) == 1
        assert useful_threads(4, LEAST_SHARED_WORK) == 4
        assert useful_threads(2, LEAST_SHARED_WORK) == 4
    finally:
        torch.set_num_threads(threads)


def test_what_cannot_be_compiled_is_told_when_it_is_waited_for() -> None:
    """Compiling goes on beside other work, so its error waits for whoever needs the kernel."""

    def wrong(address: int) -> None:
        arguments_at(address).nothing()

    kernel = Kernel(wrong, num_arguments=1)
    for _ in range(2):
        with pytest.raises(EngineError, match=r"(?s)could not be compiled.*nothing"):
            kernel.wait()
    with pytest.raises(EngineError, match="could not be compiled"):
        kernel(0, threads=1)


def test_the_compiler_keeps_its_steps_to_itself(caplog: pytest.LogCaptureFixture) -> None:
    """Who listens to everything at debug level is not told of every step of numba's."""
    with caplog.at_level(logging.DEBUG):
        Kernel(count_up, num_arguments=2).wait()
    assert caplog.records == []
