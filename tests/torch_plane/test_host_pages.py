# SPDX-License-Identifier: MIT
"""The host tier's pages as those see them who move them elsewhere."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from tokenspeed_core.errors import ConfigError
from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.testing.messages import request
from tokenspeed_core.testing.tiny_model import TinyModel, tiny_model
from tokenspeed_core.testing.torch_engine import TorchEngine, TorchSetup
from tokenspeed_core.testing.torch_world import TorchWorld
from tokenspeed_core.torch_plane import plane_setup
from tokenspeed_core.torch_plane.decoder import Decoder
from tokenspeed_core.torch_plane.host_pool import HostPool
from tokenspeed_core.torch_plane.plane import TorchDataPlane
from tokenspeed_hookspecs import HostPages

MakeEngine = Callable[..., TorchEngine]
HOST = {"host_pages": 65}
# Keys and values of two layers, two heads, 16 positions of 16 numbers of four bytes.
PAGE_BYTES = 2 * 2 * 2 * 16 * 16 * 4
MIB = 1 << 20


def pages_of(engine: TorchEngine) -> HostPages:
    """The host pages of an engine that has some."""
    pages = engine.rank.data_plane.host_pages
    assert pages is not None
    return pages


def identity(model: TinyModel, **options: Any) -> Mapping[str, object]:
    """What an engine of this model says its pages come from."""
    setup = TorchSetup(model=model, **{"scheduler": HOST, **options})
    with TorchEngine(setup) as engine:
        return pages_of(engine).identity()


def test_a_page_is_one_run_of_bytes(tiny: TinyModel) -> None:
    """All of a page's keys and values, and nothing else, are in its bytes; they can be written."""
    pool = HostPool(tiny.config, 4, page_size=16, dtype=torch.float32)
    numbers = torch.arange(PAGE_BYTES // 4, dtype=torch.float32)
    pool.page(2).copy_(numbers.view(pool.page_shape))
    assert np.frombuffer(pool.bytes_of(2), dtype=np.float32).tolist() == numbers.tolist()
    assert bytes(pool.bytes_of(1)) == bytes(pool.bytes_of(3)) == bytes(PAGE_BYTES)
    pool.bytes_of(3)[:] = pool.bytes_of(2)
    assert torch.equal(pool.page(3), pool.page(2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bytes_of_every_page_are_its_own(tiny: TinyModel, dtype: torch.dtype) -> None:
    """Pages lie one behind the other and fill the buffer."""
    pool = HostPool(tiny.config, 5, page_size=16, dtype=dtype)
    for page in range(5):
        pool.bytes_of(page)[:] = bytes([page]) * pool.bytes_per_page
    assert pool.memory.nbytes == 5 * pool.bytes_per_page
    assert all((pool.page(page).view(torch.uint8) == page).all() for page in range(5))


def test_a_view_keeps_the_memory(tiny: TinyModel) -> None:
    """Who still holds a page may read it after the pool is gone."""
    pool = HostPool(tiny.config, 4096, page_size=16, dtype=torch.float32)
    page = pool.bytes_of(4095)
    page[:] = bytes([7]) * PAGE_BYTES
    del pool
    gc.collect()
    assert bytes(page) == bytes([7]) * PAGE_BYTES


def test_what_an_engine_writes_back_is_in_its_host_pages(start_engine: MakeEngine) -> None:
    """After a prompt of four pages, as many host pages have bytes, and they are the device's."""
    engine = start_engine(scheduler=HOST)
    engine.generate([request("a", 64, budget=1, temperature=0.0)])
    for _ in range(5):
        engine.rank.loop.round()
    pages = pages_of(engine)
    used = {bytes(pages.page("full", n)) for n in range(1, 65)} - {bytes(PAGE_BYTES)}
    plane = engine.rank.data_plane
    assert isinstance(plane, TorchDataPlane)
    device = plane._operating().runner.pools.device
    on_device = {device.page(n).contiguous().numpy().tobytes() for n in range(1, device.num_pages)}
    assert len(used) >= 4
    assert used <= on_device


@pytest.mark.parametrize("page", [-1, 0, 65])
def test_a_page_that_is_not_there(start_engine: MakeEngine, page: int) -> None:
    """Page 0 belongs to nobody, and there are no others than those that were asked for."""
    pages = pages_of(start_engine(scheduler=HOST))
    with pytest.raises(IndexError, match="from 1 to 64"):
        pages.page("full", page)
    with pytest.raises(KeyError, match="'window'"):
        pages.page("window", 1)


def test_without_a_host_tier_there_are_no_pages(start_engine: MakeEngine) -> None:
    """Nothing is allocated and nothing is told."""
    plane = start_engine().rank.data_plane
    assert (plane.host_pages, plane.num_host_pages) == (None, 0)


def test_the_same_contents_are_the_same_wherever_they_lie(tmp_path: Path) -> None:
    """A checkpoint is known by its bytes: not by its name, its folder or its type of source."""
    model = tiny_model(1)
    folders = [model.save(tmp_path / name) for name in ("one", "two")]
    found = [identity(model)]
    for folder in folders:
        found.append(identity(None, engine={"model": folder}))  # type: ignore[arg-type]  # none
    assert found[0] == found[1] == found[2]


OTHERS: Mapping[str, Callable[[], Mapping[str, object]]] = {
    "weights": lambda: identity(tiny_model(2)),
    "number format": lambda: identity(tiny_model(1), engine={"dtype": "bfloat16"}),
    "page size": lambda: identity(tiny_model(1), scheduler={**HOST, "page_size": 32}),
    "rotary base": lambda: identity(tiny_model(1, rope_theta=20000.0)),
    "norm": lambda: identity(tiny_model(1, rms_norm_eps=1e-6)),
    "heads": lambda: identity(tiny_model(1, num_attention_heads=2, num_key_value_heads=2)),
}


@pytest.mark.parametrize("what", OTHERS)
def test_whatever_changes_a_pages_bytes_changes_its_identity(what: str) -> None:
    """Two engines that differ in it never take each other's pages for their own."""
    assert OTHERS[what]() != identity(tiny_model(1))


def test_another_decoder_is_another_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may compute other keys from the same weights."""

    class Other(Decoder):
        pass

    usual = identity(tiny_model(1))
    monkeypatch.setattr(plane_setup, "pick_driver", lambda *_, **__: Other)
    assert identity(tiny_model(1)) != usual


def test_one_changed_number_is_another_checkpoint() -> None:
    """All bytes count."""
    model = tiny_model(1)
    tensors = {name: tensor.clone() for name, tensor in model.weights.tensors.items()}
    tensors["lm_head.weight"][-1, -1] += 1e-3
    assert identity(model.with_tensors(tensors)) != identity(model)


@pytest.mark.parametrize(
    ("heads", "shards"),
    [(4, [(4, 0), (4, 1), (4, 2), (4, 3)]), (2, [(2, 0), (2, 0), (2, 1), (2, 1)])],
)
def test_ranks_that_hold_the_same_heads_have_the_same_shard(
    heads: int, shards: list[tuple[int, int]]
) -> None:
    """Repeated heads are one part; the bytes are equal, and so is the identity of all ranks."""
    model = tiny_model(1, num_attention_heads=4, num_key_value_heads=heads)
    setup = TorchSetup(model=model, scheduler=HOST)
    with TorchWorld(Topology(tp=4), setup) as world:
        pages = [rank.data_plane.host_pages for rank in world.ranks]
        groups = [each.groups[0] for each in pages if each is not None]
        assert [(group.shard_count, group.shard) for group in groups] == shards
        world.generate([request("a", 64, budget=1)])
        for _ in range(5):
            world.round()
        told = [each.identity() for each in pages if each is not None]
        assert told == [told[0]] * 4
        held = [bytes(each.buffers[0]) for each in pages if each is not None]
        same = {part: {held[n] for n in range(4) if shards[n] == part} for part in shards}
        assert [len(contents) for contents in same.values()] == [1] * len(same)


def test_stages_name_their_layers() -> None:
    """A page of another stage holds other layers; the sizes in bytes fit the larger stage."""
    model = tiny_model(1, num_hidden_layers=3)
    setup = TorchSetup(model=model, scheduler={"host_cache": 10 * PAGE_BYTES})
    with TorchWorld(Topology(pp=2), setup) as world:
        planes = [rank.data_plane for rank in world.ranks]
        groups = [plane.host_pages.groups[0] for plane in planes if plane.host_pages is not None]
        assert [group.page_bytes for group in groups] == [PAGE_BYTES, PAGE_BYTES // 2]
        assert [group.fields[0].split(":")[0] for group in groups] == [
            "layers 0 to 1",
            "layers 2 to 2",
        ]
        assert [plane.num_host_pages for plane in planes] == [10, 10]


def test_bytes_become_pages(start_engine: MakeEngine) -> None:
    """The scheduler and the plane have as many pages as fit, page 0 included."""
    engine = start_engine(scheduler={"host_cache": f"{20 * PAGE_BYTES + 5}"})
    assert engine.rank.data_plane.num_host_pages == pages_of(engine).num_pages == 20
    assert pages_of(engine).buffers[0].nbytes == 20 * PAGE_BYTES


@pytest.mark.parametrize(
    ("size", "said"),
    [("1KB", "at least 2 pages of 8,192 bytes"), ("900TiB", "this rank's share of memory")],
)
def test_a_size_that_does_not_fit_is_refused(tiny: TinyModel, size: str, said: str) -> None:
    """Too little for a page, or more than there is: the option is named before anything runs."""
    with pytest.raises(ConfigError, match=said) as caught:
        TorchEngine(TorchSetup(model=tiny, scheduler={"host_cache": size}))
    assert "scheduler.host_cache" in str(caught.value)


def test_engines_leave_no_pool_behind() -> None:
    """Five engines after each other, each of which fills a host tier of 64 MiB: nothing adds up."""
    wide = {"hidden_size": 128, "num_attention_heads": 8, "num_key_value_heads": 8}
    model = tiny_model(1, **wide, num_hidden_layers=4, head_dim=64)
    measured = []
    for turn in range(5):
        setup = TorchSetup(model=model, scheduler={"host_cache": 64 * MIB, "page_size": 64})
        with TorchEngine(setup) as engine:
            for view in pages_of(engine).buffers:
                view[:] = b"1" * len(view)
            engine.generate([request(f"{turn}", 200, budget=2)])
        gc.collect()
        measured.append(psutil.Process().memory_info().rss // MIB)
    assert measured[-1] - measured[0] < 64, measured
