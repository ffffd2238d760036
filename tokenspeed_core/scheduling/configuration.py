# SPDX-License-Identifier: MIT
"""The wheel's configuration from ours."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from typing import Any

from tokenspeed_core.errors import ConfigError
from tokenspeed_hookspecs import CacheGroup, SchedulerSettings, StoragePressure, StorageSettings


def page_groups(settings: SchedulerSettings) -> Sequence[CacheGroup]:
    """The groups asked for, or one of full attention."""
    return settings.groups or (CacheGroup("full", settings.page_size),)


def native_configuration(wheel: Any, settings: SchedulerSettings) -> Any:
    """The wheel's configuration object; ConfigError names an option the wheel does not have, or
    settings that it does not bear together."""
    config = wheel.SchedulerConfig()
    for name, value in _options(settings).items():
        setattr(config, name, value)
    config.cache_groups = [
        _native_group(wheel, group, num_pages=settings.num_pages) for group in page_groups(settings)
    ]
    if settings.storage is not None:
        # Its switch is named after the one subsystem that uses it; the core knows none by name.
        (switch,) = [each for each in dir(config) if fnmatch(each, "enable_*_storage")]
        setattr(config, switch, True)
        usable = max(1, settings.host_pages - 1)  # of none it says itself what is wrong
        config.storage_config = _native_storage(wheel, settings.storage, num_pages=usable)
    for name, value in settings.native_options.items():
        _set_option(config, name, value=value)
    _check_together(config, settings)
    return config


def _check_together(config: Any, settings: SchedulerSettings) -> None:
    """With all three the wheel ends the process in some plan, in a check of its own ("cache
    mutation on a KV event boundary with no token descriptor"); any two are fine."""
    has_windows = any(group.sliding_window is not None for group in settings.groups)
    if config.enable_kv_cache_events and has_windows and settings.snapshot_pages > 1:
        raise ConfigError(
            [
                "the scheduler cannot record cache events of sliding windows while it retracts "
                "requests; set scheduler.snapshot_pages to 1, or leave out what records the events"
            ]
        )


def _options(settings: SchedulerSettings) -> dict[str, object]:
    return {
        "prefix_granularity": settings.page_size,
        "max_scheduled_tokens": settings.max_scheduled_tokens,
        "max_batch_size": settings.max_batch_size,
        "decode_input_tokens": settings.decode_width,
        # One decode reserve more than a loop without overlap needs: a request at the very limit
        # still has a page for the row that runs while its last token is on the way.
        "overlap_schedule_depth": 1,
        "num_device_pages": settings.num_pages,
        "num_host_pages": settings.host_pages,
        "disable_l2_cache": settings.host_pages == 0,
        "num_snapshot_pages": settings.snapshot_pages,
        "max_retracted_requests": settings.max_retracted,
        "debug_force_retraction_interval": settings.force_retraction_every,
        "disable_prefix_cache": not settings.prefix_cache,
        "enable_mixed_prefill_decode": settings.mixed_batches,
    }


def _native_group(wheel: Any, group: CacheGroup, *, num_pages: int) -> Any:
    if group.sliding_window is None:
        return wheel.CacheGroupConfig(group.name, group.page_size, num_pages, wheel.AttnKind.Full)
    kind = wheel.AttnKind.SlidingWindow
    return wheel.CacheGroupConfig(
        group.name, group.page_size, num_pages, kind, group.sliding_window
    )


def _set_option(config: Any, name: str, *, value: object) -> None:
    if not hasattr(config, name):
        known = ", ".join(option for option in dir(config) if not option.startswith("_"))
        raise ConfigError([f"the scheduler has no option {name!r}; it has {known}"])
    try:
        setattr(config, name, value)
    except TypeError as cause:
        raise ConfigError([f"scheduler option {name!r} cannot be {value!r}: {cause}"]) from cause


def _native_storage(wheel: Any, storage: StorageSettings, *, num_pages: int) -> Any:
    def pressure(mark: StoragePressure) -> Any:
        return wheel.StoragePressure(
            mark.queued_operations, mark.queued_bytes, mark.oldest_operation_us
        )

    try:
        return wheel.StorageConfig(
            max_operations=storage.max_operations,
            max_keys_per_operation=storage.max_keys_per_operation,
            max_host_blocks=min(storage.max_host_pages, num_pages),
            metadata_entries=storage.metadata_entries,
            max_prefetch_tokens=storage.max_prefetch_tokens,
            min_prefetch_tokens=storage.min_prefetch_tokens,
            wait_timeout_us=storage.wait_timeout_us,
            ready_timeout_us=storage.ready_timeout_us,
            pressure_high=pressure(storage.pressure_high),
            pressure_low=pressure(storage.pressure_low),
        )
    except (TypeError, ValueError, RuntimeError) as cause:
        raise ConfigError([f"the scheduler refuses {storage}: {cause}"]) from cause
