# SPDX-License-Identifier: MIT
"""What the scheduler is built from."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import tokenspeed_scheduler as wheel

from tokenspeed_core.errors import ConfigError
from tokenspeed_core.scheduling.configuration import native_configuration
from tokenspeed_core.scheduling.native import NativeScheduler
from tokenspeed_hookspecs import CacheGroup, StorageTick


@pytest.mark.parametrize(
    ("changes", "name", "value"),
    [
        ({"page_size": 32}, "prefix_granularity", 32),
        ({"num_pages": 77}, "num_device_pages", 77),
        ({"mixed_batches": False}, "enable_mixed_prefill_decode", False),
        ({"prefix_cache": False}, "disable_prefix_cache", True),
        ({"host_pages": 9}, "num_host_pages", 9),
        ({"host_pages": 9}, "disable_l2_cache", False),
        ({}, "disable_l2_cache", True),
        ({"decode_width": 4}, "decode_input_tokens", 4),
        ({"native_options": {"prefix_replay_tokens": 32}}, "prefix_replay_tokens", 32),
    ],
)
def test_settings_reach_the_wheel(
    settings: Any, changes: dict[str, Any], name: str, value: object
) -> None:
    """Each setting is an option of the wheel's configuration."""
    assert getattr(native_configuration(wheel, settings(**changes)), name) == value


def test_groups_reach_the_wheel(settings: Any) -> None:
    """A group with a window is a sliding one; without groups there is one of full attention."""
    groups = (CacheGroup("full", 16), CacheGroup("window", 16, 64))
    config = native_configuration(wheel, settings(groups=groups))
    kinds = [(group.group_id, group.attn_kind) for group in config.cache_groups]
    assert kinds == [("full", wheel.AttnKind.Full), ("window", wheel.AttnKind.SlidingWindow)]
    assert native_configuration(wheel, settings()).cache_groups[0].group_id == "full"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"native_options": {"no_such": 1}}, "no option 'no_such'; it has .*max_batch_size"),
        ({"native_options": {"prefix_replay_tokens": "x"}}, "prefix_replay_tokens.*cannot be 'x'"),
        ({"snapshot_pages": 0}, "no scheduler can be built"),
        ({"max_scheduled_tokens": 0}, "no scheduler can be built"),
    ],
)
def test_wrong_settings(settings: Any, changes: dict[str, Any], text: str) -> None:
    """What the wheel cannot be built from is a configuration error that says what."""
    with pytest.raises(ConfigError, match=text):
        NativeScheduler(settings(**changes))


def test_cache_events_are_drained_when_recorded(rounds: Any) -> None:
    """A recording driver gives the events of new prefixes, once."""
    loop = rounds(native_options={"enable_kv_cache_events": True})
    loop.submit("a", 40, budget=1)
    loop.drain()
    assert len(loop.driver.drain_events()) > 0
    assert list(loop.driver.drain_events()) == []


def test_no_events_unless_recorded(rounds: Any) -> None:
    """Without recording there are none."""
    loop = rounds()
    loop.submit("a", 40, budget=1)
    loop.drain()
    assert list(loop.driver.drain_events()) == []


def test_a_frozen_scheduler_plans_no_forward(rounds: Any) -> None:
    """After a tick that forbids forwards requests stay where they are, until one allows them."""
    loop = rounds()
    loop.submit("a")
    loop.round()
    loop.driver.advance_head(StorageTick(allow_forward=False), [])
    assert loop.driver.plan().batch is None
    loop.driver.advance_head(StorageTick(), [])
    assert loop.round().batch.request_ids == ["a"]


def test_clearing_the_cache(rounds: Any) -> None:
    """After a clear the same prompt finds no prefix."""
    loop = rounds()
    loop.submit("a", 40, budget=1)
    loop.drain()
    assert loop.driver.clear_cache()
    assert loop.driver.clear_device_cache()
    assert loop.driver.sizes.empty_pages == 512


QUIET = "from tokenspeed_core.scheduling.native import NativeScheduler as S; \
from tokenspeed_hookspecs import SchedulerSettings; S(SchedulerSettings()).clear_cache()"


@pytest.mark.parametrize(("level", "is_quiet"), [(None, True), ("info", False)])
def test_the_log_is_quiet_unless_asked(level: str | None, is_quiet: bool) -> None:
    """The wheel's log stays off standard output, except where its own variable asks for it."""
    environment = {name: value for name, value in os.environ.items() if name != "SPDLOG_LEVEL"}
    if level is not None:
        environment["SPDLOG_LEVEL"] = level
    command = [sys.executable, "-c", QUIET]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert (done.stdout == "") is is_quiet
