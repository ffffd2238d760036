# SPDX-License-Identifier: MIT
"""A trainer sends new weights to an engine whose ranks are processes, as RL training does."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tokenspeed_core.client.addresses import private_addresses
from tokenspeed_core.client.config import ClientConfig
from tokenspeed_core.client.engine_client import EngineClient
from tokenspeed_core.config import from_tables
from tokenspeed_core.serving.engine_process import EngineProcess
from tokenspeed_core.serving.followers import meeting_folder
from tokenspeed_core.serving.messages import EngineOrder
from tokenspeed_core.testing import request
from tokenspeed_core.testing.small_tokenizer import save_small_tokenizer
from tokenspeed_core.testing.tiny_model import TinyModel, tiny_model
from tokenspeed_core.testing.torch_engine import TorchEngine, TorchSetup
from tokenspeed_hookspecs import Chunk, ControlReply, ControlRequest

GROUP, WORLD = "updates", 3
# As trainers do it: without a default group, the group's name before its keys in the store.
TRAINER = """
import datetime, os, sys, torch
from torch.distributed import distributed_c10d as c10d
from torch.distributed.rendezvous import rendezvous
port, file, size, count = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
wait = datetime.timedelta(seconds=60)
store, _, _ = next(rendezvous(f"tcp://127.0.0.1:{port}", 0, size, timeout=wait))
store = c10d.PrefixStore("updates", store)
group, _ = c10d._new_process_group_helper(
    size, 0, [], c10d.Backend("gloo"), store, group_name=c10d.GroupName("updates"), timeout=wait
)
for tensor in torch.load(file, weights_only=True)[:count]:
    group.broadcast(tensor, 0).wait()
os._exit(0)  # torch's own threads may abort a usual exit
"""
PROMPT = request("r", 40, budget=16, temperature=0.0, ignore_eos=True)


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def trainer(model: TinyModel, port: int, *, folder: Path, count: int) -> Iterator[None]:
    """A process that sends so many of a model's tensors, in the order of their names, and ends."""
    tensors = model.weights.tensors
    torch.save([tensors[name] for name in sorted(tensors)], folder / "tensors.pt")
    arguments = [str(port), str(folder / "tensors.pt"), str(WORLD), str(count)]
    process = subprocess.Popen([sys.executable, "-c", TRAINER, *arguments])
    try:
        yield
    finally:
        process.kill()
        process.wait()


async def told(client: EngineClient, name: str, arguments: Mapping[str, Any]) -> ControlReply:
    """The one engine's answer."""
    (reply,) = await client.control(ControlRequest(name, arguments), timeout_s=60)
    return reply


async def answer(client: EngineClient) -> list[Chunk]:
    """The chunks of the prompt's answer."""
    stream = await client.generate(PROMPT)
    return [chunk async for chunk in stream]


async def update(client: EngineClient, new: TinyModel, *, folder: Path, count: int) -> ControlReply:
    """Join a trainer that sends so many of the new model's tensors, and ask for all of them."""
    port = free_port()
    with trainer(new, port, folder=folder, count=count):
        meeting = {"master_address": "127.0.0.1", "master_port": port, "backend": "gloo"}
        place = {"rank_offset": 1, "world_size": WORLD, "group_name": GROUP}
        joined = await told(client, "init_weights_update_group", {**meeting, **place})
        assert joined.success, joined.message
        names = sorted(new.weights.tensors)
        wanted = {
            "names": names,
            "dtype_names": ["float32"] * len(names),
            "shapes": [list(new.weights.tensors[name].shape) for name in names],
            "group_name": GROUP,
            "weight_version": "step-1",
        }
        reply = await told(client, "update_weights_from_distributed", wanted)
    assert (await told(client, "destroy_weights_update_group", {"group_name": GROUP})).success
    return reply


def tokens(chunks: list[Chunk]) -> list[int]:
    """What an answer consists of."""
    return [token for chunk in chunks for token in chunk.token_ids]


@pytest.mark.slow
def test_broadcast_weights_reach_every_rank(tmp_path: Path) -> None:
    """A trainer that ends too early changes nothing on either; after another one, two ranks answer
    as one with the new weights does, and name their version."""
    old, new = tiny_model(3), tiny_model(4)
    folder = tmp_path / "model"
    old.save(folder)
    save_small_tokenizer(folder, vocab_size=300)
    with TorchEngine(TorchSetup(model=new)) as one:
        expected = one.generate([PROMPT])[0].tokens
    engine = {"model": str(folder), "dtype": "float32", "device": "cpu", "tp": 2}
    config = from_tables({"engine": engine, "scheduler": {"num_pages": 40}}).to_toml()

    async def run() -> list[Chunk]:
        with private_addresses() as addresses, meeting_folder() as meeting:
            client = EngineClient(ClientConfig(addresses=addresses, handshake_timeout_s=60))
            client.bind()
            handshake = client.addresses.handshake
            order = EngineOrder(config=config, handshake=handshake, meeting=str(meeting))
            process = await EngineProcess.start(order, hear=lambda _: None)
            try:
                await client.accept()
                before = await answer(client)
                assert (await told(client, "pause", {"mode": "wait"})).success
                early = await update(client, new, folder=tmp_path, count=4)
                assert (early.success, "broke after 4 of" in early.message) == (False, True)
                assert (await told(client, "resume", {})).success
                assert tokens(await answer(client)) == tokens(before) != expected
                loaded = await update(client, new, folder=tmp_path, count=len(new.weights.tensors))
                assert loaded.success, loaded.message
                return await answer(client)
            finally:
                await process.stop()
                await client.aclose()

    chunks = asyncio.run(run())
    assert tokens(chunks) == expected
    assert chunks[-1].finish is not None
    assert chunks[-1].finish.weight_version == "step-1"
