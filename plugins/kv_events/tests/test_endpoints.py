# SPDX-License-Identifier: MIT
"""Where each of several data-parallel ranks publishes."""

from __future__ import annotations

import pytest

from tokenspeed_kv_events.endpoints import endpoint_problem, rank_endpoint


@pytest.mark.parametrize(
    ("endpoint", "rank", "expected"),
    [
        ("tcp://*:5557", 0, "tcp://*:5557"),
        ("tcp://*:5557", 2, "tcp://*:5559"),
        ("tcp://[::1]:5557", 1, "tcp://[::1]:5558"),
        ("ipc:///run/kv", 1, "ipc:///run/kv_dp1"),
        ("inproc://kv", 3, "inproc://kv_dp3"),
    ],
)
def test_a_rank_has_the_next_port_or_its_own_name(endpoint: str, rank: int, expected: str) -> None:
    """The first rank has the address itself."""
    assert rank_endpoint(endpoint, rank) == expected


@pytest.mark.parametrize("endpoint", ["tcp://host", "tcp://host:0", "tcp://h:99999", "x", "tcp://"])
def test_what_is_no_address_is_told(endpoint: str) -> None:
    """The sentence repeats what was given."""
    assert repr(endpoint) in str(endpoint_problem(endpoint))
