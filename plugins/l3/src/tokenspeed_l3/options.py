# SPDX-License-Identifier: MIT
"""What an operator may set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import field, frozen

from tokenspeed_hookspecs import Plugin, StoragePressure, StorageSettings
from tokenspeed_l3.addresses import parse_address
from tokenspeed_l3.executor import ExecutorSettings

ALL_PAGES = 2**31 - 1


def _option(default: Any, words: str, **limits: Any) -> Any:
    return field(default=default, metadata={"help": words, **limits})


@frozen
class L3Options(Plugin.Options):
    """Where objects are kept, what they are called, and how much may be under way."""

    store: str = _option("", "file:/path, redis://host:port/0, memory:name, ...")
    store_options: Mapping[str, Any] = field(factory=dict, metadata={"help": "the store's options"})
    required: bool = _option(True, "do not start without the store")
    deployment_id: str = _option("", "engines of one name share; the model's name without it")
    weight_version: str = _option("v1", "the version of the weights the engine starts with")
    max_operations: int = _option(64, "operations under way", minimum=1)
    max_keys_per_operation: int = _option(
        1024, "pages of one operation: the most that a request can win", minimum=1
    )
    max_host_pages: int | None = _option(
        None, "host pages for it at a time; all without it", minimum=1
    )
    metadata_entries: int = _option(65_536, "damaged objects to remember", minimum=1)
    min_prefetch_tokens: int = _option(256, "a request with less to win does not ask", minimum=1)
    max_prefetch_tokens: int = _option(1_048_576, "tokens that a request asks for", minimum=1)
    wait_timeout_s: float = _option(2.0, "how long a request waits for its pages", minimum=0.001)
    ready_timeout_s: float = _option(10.0, "how long its pages wait for it", minimum=0.001)
    pressure_operations: int = _option(
        48, "operations not begun above which requests pass the store by", minimum=2
    )
    pressure_bytes: int = _option(2**30, "their bytes", minimum=2)
    pressure_age_s: float = _option(1.0, "the age of the oldest one", minimum=0.001)
    query_workers: int = _option(2, "threads that look for pages", minimum=1)
    read_workers: int = _option(4, "threads that fetch pages", minimum=1)
    write_workers: int = _option(2, "threads that put pages", minimum=1)
    failure_threshold: int = _option(
        3, "failures in a row after which the store is left alone", minimum=1
    )
    recovery_interval_s: float = _option(30.0, "and for how long", minimum=0.0)
    flush_timeout_s: float = _option(10.0, "how long a flush waits for the store", minimum=0.001)
    stop_timeout_s: float = _option(5.0, "how long a stop waits for the store", minimum=0.0)

    def storage(self) -> StorageSettings:
        """The scheduler's limits; requests come back to the store at half of each mark."""
        age_us = _us(self.pressure_age_s)
        return StorageSettings(
            max_operations=self.max_operations,
            max_keys_per_operation=self.max_keys_per_operation,
            max_host_pages=self.max_host_pages or ALL_PAGES,
            metadata_entries=self.metadata_entries,
            min_prefetch_tokens=self.min_prefetch_tokens,
            max_prefetch_tokens=self.max_prefetch_tokens,
            wait_timeout_us=_us(self.wait_timeout_s),
            ready_timeout_us=_us(self.ready_timeout_s),
            pressure_high=StoragePressure(self.pressure_operations, self.pressure_bytes, age_us),
            pressure_low=StoragePressure(
                self.pressure_operations // 2, self.pressure_bytes // 2, age_us // 2
            ),
        )

    def executor(self) -> ExecutorSettings:
        """The executor's settings."""
        return ExecutorSettings(
            max_operations=self.max_operations,
            query_workers=self.query_workers,
            read_workers=self.read_workers,
            write_workers=self.write_workers,
            failure_threshold=self.failure_threshold,
            recovery_us=_us(self.recovery_interval_s),
        )

    def problems(self) -> list[str]:
        """A sentence for each option that cannot be, or does not go with another."""
        found = []
        try:
            parse_address(self.store, self.store_options)
        except ValueError as error:
            found.append(f"l3.store: {error}")
        if self.min_prefetch_tokens > self.max_prefetch_tokens:
            found.append(
                f"l3.min_prefetch_tokens: {self.min_prefetch_tokens} is more than "
                f"max_prefetch_tokens, {self.max_prefetch_tokens}, so nothing would be fetched"
            )
        return found


def _us(seconds: float) -> int:
    return round(seconds * 1_000_000)
