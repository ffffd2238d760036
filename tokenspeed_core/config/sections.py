# SPDX-License-Identifier: MIT
"""The engine's own options, by table of the configuration file."""

from __future__ import annotations

import attrs
from attrs import frozen

from tokenspeed_core.config.byte_sizes import parse_bytes
from tokenspeed_core.config.tables import check_limits, option
from tokenspeed_core.errors import ConfigError
from tokenspeed_hookspecs import SchedulerSettings

HOST_CACHE = "host_cache"


@frozen(kw_only=True)
class EngineSection:
    """`[engine]`: the model, what runs it, and how the loop turns."""

    model: str = option("smollm2-135m", "a default model's name, a folder, a file, or a hub id")
    data_plane: str = option("torch", "the driver that runs the model")
    scheduler: str = option("native", "the driver that plans the rounds")
    dtype: str = option(
        "auto", "number format of the weights", choices=("auto", "float32", "bfloat16")
    )
    device: str = option("auto", "where the model runs: auto, cpu, cuda, cuda:1, ...")
    threads: int | None = option(None, "threads of one operation on a CPU", minimum=1)
    tp: int = option(1, "ranks that share each layer's tensors", minimum=1)
    pp: int = option(1, "pipeline stages, each with some of the layers", minimum=1)
    dp: int = option(1, "replicas whose forwards run in step", minimum=1)
    ep: int = option(1, "ranks over which each layer's experts are spread", minimum=1)
    check_ranks: bool = option(False, "compare where every rank is at each exchange")
    depth: int = option(1, "forwards in flight when the next one is planned", minimum=0)
    stream_interval: int = option(1, "tokens between two chunks of a stream", minimum=1)
    max_model_len: int | None = option(
        None, "longest prompt plus output, in tokens; the model's own without it", minimum=1
    )

    record: str | None = option(None, "a file to write what the rounds take in, for a replay")

    def __attrs_post_init__(self) -> None:
        check_limits(self)


@frozen(kw_only=True)
class SchedulerSection:
    """`[scheduler]`: batches and the paged cache; page 0 is never given out."""

    page_size: int = option(64, "tokens a page", minimum=1)
    num_pages: int = option(513, "pages of the cache, page 0 included", minimum=2)
    max_batch_size: int = option(64, "requests that run together", minimum=1)
    max_scheduled_tokens: int = option(2048, "tokens of one forward", minimum=1)
    mixed_batches: bool = option(True, "prompt chunks and decodes in one forward")
    prefix_cache: bool = option(True, "reuse the pages of a common prefix")
    snapshot_pages: int = option(1, "pages of the pool of retracted requests", minimum=1)
    max_retracted: int = option(0, "requests that may be retracted at a time", minimum=0)
    force_retraction_every: int = option(
        0, "retract one every so many rounds, for tests; 0 is never", minimum=0
    )
    host_pages: int = option(0, "pages of the host tier", minimum=0)
    host_cache: int | str | None = option(
        None, "memory of each rank's host tier, instead of its pages: 2GiB, 512MB, or bytes"
    )

    def __attrs_post_init__(self) -> None:
        check_limits(self)
        if self.host_cache is None:
            return
        try:
            size = parse_bytes(self.host_cache)
        except ValueError as error:
            raise ConfigError([f"host_cache: {error}"]) from error
        if size < 1:
            raise ConfigError([f"host_cache: expected at least a byte, got {self.host_cache!r}"])
        if self.host_pages:
            raise ConfigError(
                [f"host_cache: host_pages is {self.host_pages} already; give one of the two"]
            )

    @property
    def host_bytes(self) -> int:
        """The size of the host tier, 0 where its pages are given, or it has none."""
        return 0 if self.host_cache is None else parse_bytes(self.host_cache)

    def settings(self) -> SchedulerSettings:
        """Return what a scheduler is built with, for plugins to change."""
        values = attrs.asdict(self)
        del values[HOST_CACHE]
        return SchedulerSettings(**values, host_bytes=self.host_bytes)

    def changed(self, settings: SchedulerSettings) -> SchedulerSection:
        """Return this section as plugins left its settings."""
        values = {
            name: getattr(settings, name) for name in attrs.asdict(self) if name != HOST_CACHE
        }
        is_same = settings.host_bytes == self.host_bytes
        size = self.host_cache if is_same else settings.host_bytes or None
        return SchedulerSection(**values, host_cache=size)
