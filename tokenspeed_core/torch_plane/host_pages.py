# SPDX-License-Identifier: MIT
"""The host pool as the contract's HostPages: what is in a page, and where that came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from tokenspeed_core.config.values import encode
from tokenspeed_core.models.rope import RopeKind
from tokenspeed_core.torch_plane.checkpoint import fingerprint
from tokenspeed_core.torch_plane.host_pool import HostPool
from tokenspeed_core.torch_plane.plane_setup import PlaneSetup
from tokenspeed_hookspecs import HostGroup

# Of how the bytes of a page are arranged; a change of `HostPool` that moves them is a new one.
LAYOUT = "page, layer, keys and values, head, position, dimension; version 1"
# What a model's config says that has no part in its keys and values.
ELSEWHERE = ("eos_token_ids", "bos_token_id", "dtype", "max_position_embeddings")


class TorchHostPages:
    """One group of pages, and what they came from."""

    def __init__(self, setup: PlaneSetup, pool: HostPool) -> None:
        self._setup = setup
        self._pool = pool
        self._identity: Mapping[str, object] | None = None
        self.group = _group(setup, pool)

    @property
    def groups(self) -> Sequence[HostGroup]:
        """The one group."""
        return (self.group,)

    @property
    def num_pages(self) -> int:
        """Pages, page 0 included."""
        return self._pool.num_pages

    @property
    def buffers(self) -> Sequence[memoryview]:
        """The one allocation."""
        return (self._pool.memory,)

    def page(self, group: str, page: int) -> memoryview:
        """The bytes of one page; nobody has a use for page 0."""
        if group != self.group.group:
            raise KeyError(f"expected cache group {self.group.group!r}, got {group!r}")
        if not 0 < page < self.num_pages:
            raise IndexError(f"expected a host page from 1 to {self.num_pages - 1}, got {page}")
        return self._pool.bytes_of(page)

    def identity(self) -> Mapping[str, object]:
        """All of a page's origins but tokens and the weights' version; reads the checkpoint once.

        The same on every rank: what a rank holds of a page is in its group.
        """
        if self._identity is None:
            self._identity = _identity(self._setup)
        return self._identity


def _group(setup: PlaneSetup, pool: HostPool) -> HostGroup:
    shard = setup.shard
    tp, heads = shard.topology.tp, shard.whole.num_kv_heads
    count = min(tp, heads)
    layers, kinds, per_rank, positions, dim = pool.page_shape
    first = shard.layers.start
    dtype = setup.info.dtype
    field = (
        f"layers {first} to {first + layers - 1}: "
        f"{dtype}[{layers}, {kinds}, {per_rank}, {positions}, {dim}]"
    )
    # Where there are fewer heads than ranks, neighbours hold the same one.
    part = shard.place.position * count // tp
    return HostGroup(setup.group.name, pool.bytes_per_page, (field,), count, part)


def _identity(setup: PlaneSetup) -> Mapping[str, object]:
    whole = setup.shard.whole
    shape: Mapping[str, object] = encode(attrs.asdict(whole))
    found: dict[str, object] = {
        "checkpoint": fingerprint(setup.model.open_weights()),
        "decoder": _name(setup.make_decoder),
        "model": {name: value for name, value in shape.items() if name not in ELSEWHERE},
        "dtype": setup.info.dtype,
        "layout": LAYOUT,
        "page_size": setup.sizes.page_size,
        "tp": setup.shard.topology.tp,
        "pp": setup.shard.topology.pp,
    }
    if whole.rope_scaling.kind is not RopeKind.NONE:
        # Some ways of stretching look at the longest text there may be.
        found["max_positions"] = [whole.max_position_embeddings, setup.info.max_model_len]
    return found


def _name(decoder: object) -> str:
    """Another decoder may compute other keys from the same weights."""
    named = decoder if hasattr(decoder, "__qualname__") else type(decoder)
    return f"{named.__module__}.{named.__qualname__}"
