# SPDX-License-Identifier: MIT
"""What the plane is built from, decided and checked before any weight is loaded."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from attrs import evolve, frozen

from tokenspeed_core.composition.drivers import pick_driver
from tokenspeed_core.config import EngineConfig, SchedulerSection
from tokenspeed_core.errors import ConfigError
from tokenspeed_core.models.config import ModelConfig
from tokenspeed_core.models.progress import Progress, Silent
from tokenspeed_core.models.resolve import resolve_model
from tokenspeed_core.models.weights import WeightSource
from tokenspeed_core.ranks.device_seat import DeviceSeat
from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.torch_plane.decoder import Decoder
from tokenspeed_core.torch_plane.device import choose_device, choose_dtype
from tokenspeed_core.torch_plane.host_pool import HostPool
from tokenspeed_core.torch_plane.kv_cache import PagedKVCache, page_bytes
from tokenspeed_core.torch_plane.shard import Shard, ShardedWeights
from tokenspeed_hookspecs import CacheGroup, ModelInfo

GROUP = "full"
MODELS = "tokenspeed.models"
OPTIONS = ("model", "progress", "traces")
# The scheduler needs a page beyond those of a request's tokens.
SPARE_PAGES = 1
# Page 0 is never used.
FEWEST_PAGES = 2


class RunnableModel(Protocol):
    """A model whose shape is known and whose weights can be had: a ModelFolder is one."""

    @property
    def name(self) -> str:
        """What it is called."""

    @property
    def config(self) -> ModelConfig:
        """Its shape."""

    def open_weights(self) -> WeightSource:
        """Return its weights, checked against the shape."""


@frozen(kw_only=True)
class PlaneSetup:
    """Model, device, number format and sizes."""

    model: RunnableModel
    shard: Shard
    seat: DeviceSeat | None
    make_decoder: Callable[..., Decoder]
    progress: Progress
    info: ModelInfo
    device: torch.device
    dtype: torch.dtype
    threads: int | None
    sizes: SchedulerSection
    traces: Path | None

    @property
    def group(self) -> CacheGroup:
        """The one cache group: every layer attends to everything."""
        return CacheGroup(GROUP, self.sizes.page_size)

    @property
    def host_pool(self) -> HostPool | None:
        """A new pool for the host tier, if there is to be one."""
        if not self.sizes.host_pages:
            return None
        return HostPool(
            self.shard.config,
            self.sizes.host_pages,
            page_size=self.sizes.page_size,
            dtype=self.dtype,
            is_pinned=self.device.type == "cuda",
        )

    def pool(self, num_pages: int, device: torch.device) -> PagedKVCache:
        """A pool of pages of this model."""
        return PagedKVCache(
            self.shard.config,
            num_pages,
            page_size=self.sizes.page_size,
            dtype=self.dtype,
            device=device,
        )

    def open_weights(self) -> WeightSource:
        """This rank's part of the weights."""
        whole = self.model.open_weights()
        return whole if self.seat is None else ShardedWeights(whole, self.shard.cuts())


def prepare(
    config: EngineConfig, options: Mapping[str, Any], *, seat: DeviceSeat | None = None
) -> PlaneSetup:
    """Find the model and decide everything else; ConfigError lists what does not fit.

    Options: `model`, a RunnableModel to use instead of the one `engine.model` names; `progress`,
    a Progress that hears of downloads, conversions and loading; `traces`, the folder below which
    the profiler writes (a temporary one otherwise).
    """
    if unknown := sorted(set(options) - set(OPTIONS)):
        raise ConfigError(
            [f"data_plane.{name}: the torch plane has no such option" for name in unknown]
        )
    progress: Progress = options.get("progress") or Silent()
    rank, size = (0, 1) if seat is None else (seat.rank % seat.local_size, seat.local_size)
    device = choose_device(config.engine.device, local_rank=rank, local_size=size)
    dtype = choose_dtype(config.engine.dtype, device)
    model: RunnableModel = options.get("model") or resolve_model(config.engine.model, progress)
    shape = model.config
    architecture = shape.architecture.name.lower()
    topology = Topology() if seat is None else seat.topology
    shard = Shard(shape, topology, topology.place(0 if seat is None else seat.rank))
    if problems := shard.problems():
        raise ConfigError(problems)
    setup = PlaneSetup(
        model=model,
        shard=shard,
        seat=seat,
        make_decoder=pick_driver(MODELS, architecture, option=f"the model {model.name}"),
        progress=progress,
        info=ModelInfo(
            name=model.name,
            vocab_size=shape.vocab_size,
            max_model_len=config.engine.max_model_len or shape.max_position_embeddings,
            eos_token_ids=shape.eos_token_ids,
            dtype=str(dtype).removeprefix("torch."),
            num_layers=shape.num_layers,
            hidden_size=shape.hidden_size,
        ),
        device=device,
        dtype=dtype,
        threads=config.engine.threads,
        sizes=_sizes(config.scheduler, shard, dtype=dtype),
        traces=_traces(options.get("traces")),
    )
    if problems := _problems(setup, wanted_len=config.engine.max_model_len):
        raise ConfigError(problems)
    return setup


def _sizes(sizes: SchedulerSection, shard: Shard, *, dtype: torch.dtype) -> SchedulerSection:
    """The sizes in pages. Those of the rank with the most layers hold for all, whose schedulers
    must be alike."""
    if not sizes.host_bytes:
        return sizes
    topology = shard.topology
    each = max(
        page_bytes(
            Shard(shard.whole, topology, topology.place(rank)).config,
            page_size=sizes.page_size,
            dtype=dtype,
        )
        for rank in range(topology.replica_size)
    )
    count = sizes.host_bytes // each
    if count < FEWEST_PAGES:
        raise ConfigError(
            [
                f"scheduler.host_cache: expected at least {FEWEST_PAGES} pages of {each:,} bytes "
                f"({sizes.page_size} tokens each), got {sizes.host_cache!r}"
            ]
        )
    return evolve(sizes, host_pages=count, host_cache=None)


def _traces(folder: object) -> Path | None:
    if folder is None:
        return None
    if not isinstance(folder, str | Path) or not str(folder):
        raise ConfigError([f"data_plane.traces: expected a folder, got {folder!r}"])
    return Path(folder).expanduser()


def _problems(setup: PlaneSetup, wanted_len: int | None) -> list[str]:
    problems = []
    longest = setup.model.config.max_position_embeddings
    if wanted_len is not None and wanted_len > longest:
        problems.append(
            f"engine.max_model_len: {setup.model.name} knows {longest} positions, got {wanted_len}"
        )
    sizes = setup.sizes
    # Without a length of its own the scheduler's capacity limits requests; it must hold some.
    needed = 1 + SPARE_PAGES + -(-(wanted_len or 1) // sizes.page_size)
    if sizes.num_pages < needed:
        problems.append(
            f"scheduler.num_pages: {sizes.num_pages} pages of {sizes.page_size} tokens are too few "
            f"for a request of {wanted_len or 1} tokens; at least {needed} are needed"
        )
    return problems + _memory_problems(setup)


def _memory_problems(setup: PlaneSetup) -> list[str]:
    """Whether the pools can fit at all; their memory is taken only as pages are used."""
    sizes = setup.sizes
    page = page_bytes(setup.shard.config, page_size=sizes.page_size, dtype=setup.dtype)
    on_host = sizes.host_pages
    on_device = sizes.num_pages + sizes.snapshot_pages
    if setup.device.type == "cpu":
        on_host, on_device = on_host + on_device, 0
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    available //= 1 if setup.seat is None else setup.seat.local_size
    problems = []
    if sizes.host_pages * page > available:
        option = "host_cache or host_pages"
        problems.append(
            f"scheduler.{option}: the host tier holds {sizes.host_pages} pages of {page:,} bytes, "
            f"{sizes.host_pages * page:,} in all, and this rank's share of memory is {available:,}"
        )
    elif on_host * page > available:
        problems.append(_too_large(on_host, page, available=available, place="memory"))
    if on_device:
        free, _total = torch.cuda.mem_get_info(setup.device)
        left, place = free - _weight_bytes(setup), f"{setup.device} beside the weights"
        if on_device * page > left:
            problems.append(_too_large(on_device, page, available=left, place=place))
    return problems


def _weight_bytes(setup: PlaneSetup) -> int:
    shapes = setup.open_weights().shapes.values()
    return sum(math.prod(shape) for shape in shapes) * setup.dtype.itemsize


def _too_large(num_pages: int, page: int, *, available: int, place: str) -> str:
    return (
        f"scheduler.num_pages: all pools together hold {num_pages} pages of {page:,} bytes, "
        f"{num_pages * page:,} in all, and {place} has {available:,}"
    )
