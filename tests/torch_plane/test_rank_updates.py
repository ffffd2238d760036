# SPDX-License-Identifier: MIT
"""New weights on several ranks, each with a disk of its own: on all of them or on none."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.testing import request
from tokenspeed_core.testing.tiny_model import TinyModel, tiny_model
from tokenspeed_core.testing.torch_engine import TorchEngine, TorchSetup
from tokenspeed_core.testing.torch_world import TorchWorld
from tokenspeed_hookspecs import ControlReply

CLONE_FS = 0x200
MIB = 1 << 20
UP = "model.layers.1.mlp.up_proj.weight"
FIELDS: dict[str, Any] = {"num_hidden_layers": 3, "num_key_value_heads": 2}
WIDE: dict[str, Any] = {
    "vocab_size": 20_000,
    "hidden_size": 256,
    "intermediate_size": 2048,
    "head_dim": 64,
}
Damage = Callable[[Path], None]
Start = Callable[..., tuple[TorchWorld, list[Path]]]


def cut_short(file: Path) -> None:
    """The download ended early."""
    file.write_bytes(file.read_bytes()[:-100])


def without_a_tensor(file: Path) -> None:
    """A tensor is missing."""
    tensors = load_file(file)
    del tensors[UP]
    save_file(tensors, file)


def of_another_dtype(file: Path) -> None:
    """A tensor is stored as integers."""
    save_file({**load_file(file), UP: torch.zeros(96, 64, dtype=torch.int32)}, file)


def gone(file: Path) -> None:
    """There is nothing."""
    file.unlink()


def live_in(world: TorchWorld, folders: list[Path]) -> None:
    """Give each rank's thread, which alone reads files, a working folder of its own."""
    for rank, folder in zip(world.ranks, folders, strict=True):
        rank.data_plane.call(partial(_move, folder))


def _move(folder: Path) -> None:
    assert ctypes.CDLL(None).unshare(CLONE_FS) == 0
    os.chdir(folder)


def saved(model: TinyModel, folder: Path, *, ranks: int) -> list[Path]:
    """A folder for each rank with the model as `new` in it."""
    folders = [folder / str(rank) for rank in range(ranks)]
    for each in folders:
        each.mkdir()
        model.save(each / "new")
    return folders


def said(engine: TorchWorld | TorchEngine, name: str) -> list[list[int]]:
    """What greedy requests are given; a name is used once."""
    asked = [
        request(f"{name}{n}", range(n, 40 + n), budget=12, temperature=0.0, ignore_eos=True)
        for n in range(3)
    ]
    return [stream.tokens for stream in engine.generate(asked)]


def update(world: TorchWorld) -> ControlReply:
    """Ask for what each rank has as `new`."""
    return world.ask("update_weights_from_disk", model_path="./new", weight_version="2")


def resident() -> float:
    """This process's resident memory in MiB."""
    return int(psutil.Process().memory_info().rss) / MIB


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start ranks of an old model, with the new one on the disk of each."""
    with ExitStack() as stack:

        def make(topology: Topology, **fields: Any) -> tuple[TorchWorld, list[Path]]:
            old, new = (tiny_model(seed, **{**FIELDS, **fields}) for seed in (3, 4))
            setup = TorchSetup(model=old, engine={"threads": 1})
            world = stack.enter_context(TorchWorld(topology, setup))
            folders = saved(new, tmp_path, ranks=topology.world_size)
            live_in(world, folders)
            return world, folders

        yield make


@pytest.mark.parametrize("topology", [Topology(tp=2), Topology(pp=2)], ids=str)
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut_short, "is not a whole safetensors file"),
        (without_a_tensor, f"missing: {UP.replace('1', '{1}')}"),
        (of_another_dtype, f"{UP} is I32"),
        (gone, "no *.safetensors file in it"),
    ],
)
def test_a_rank_that_cannot_read_keeps_all_from_changing(
    start: Start, *, topology: Topology, damage: Damage, message: str
) -> None:
    """The reply names it and its reason; every rank has the old weights, and takes new ones."""
    world, folders = start(topology)
    before = said(world, "a")
    file = folders[1] / "new/model.safetensors"
    whole = file.read_bytes()
    damage(file)
    reply = update(world)
    assert not reply.success
    assert reply.message.startswith("update_weights_from_disk failed on rank 1: ")
    assert message in reply.message
    assert said(world, "b") == before
    assert {rank.loop.controls.weight_version for rank in world.ranks} == {None}
    file.write_bytes(whole)
    assert update(world).success
    assert {rank.loop.controls.weight_version for rank in world.ranks} == {"2"}
    with TorchEngine(TorchSetup(model=tiny_model(4, **FIELDS))) as one:
        assert said(world, "c") == said(one, "c")


def test_what_all_ranks_lack_is_said_once(start: Start) -> None:
    """The same reason on every rank is one reason, without their names."""
    world, folders = start(Topology(tp=2))
    for folder in folders:
        cut_short(folder / "new/model.safetensors")
    reply = update(world)
    assert not reply.success
    assert reply.message.startswith("new/model.safetensors is not a whole safetensors file")


def test_a_refused_update_leaves_no_memory_behind(start: Start) -> None:
    """What the other rank had read is given back to the system, and an update costs nothing."""
    world, folders = start(Topology(tp=2), **WIDE)
    weights = (folders[0] / "new/model.safetensors").stat().st_size / MIB
    said(world, "a")
    assert update(world).success  # both hold tensors of their own from here on
    before = resident()
    file = folders[1] / "new/model.safetensors"
    whole = file.rename(file.with_name("whole"))
    assert not update(world).success
    refused = resident()
    whole.rename(file)
    assert update(world).success
    measured = f"weights {weights:.0f}: {before:.0f}, {refused:.0f}, {resident():.0f} MiB"
    assert weights > 50, measured
    assert refused < before + 0.3 * weights, measured
    assert resident() < before + 0.3 * weights, measured
