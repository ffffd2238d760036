# SPDX-License-Identifier: MIT
"""A trainer in another process sends weights over a group it makes its own way."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from tokenspeed_core.testing.messages import request
from tokenspeed_core.testing.tiny_model import tiny_model
from tokenspeed_core.testing.torch_engine import TorchEngine
from tokenspeed_core.torch_plane.refusal import RefusedError
from tokenspeed_core.torch_plane.update_groups import GroupAddress, UpdateGroups
from tokenspeed_hookspecs import ControlRequest

MakeEngine = Callable[..., TorchEngine]
NAMES = ("model.layers.0.self_attn.k_proj.weight", "model.norm.weight")
# As trainers do it: without a default group, the group's name before its keys in the store.
TRAINER = """
import datetime, os, sys, torch
from torch.distributed import distributed_c10d as c10d
from torch.distributed.rendezvous import rendezvous
port, file = sys.argv[1:]
wait = datetime.timedelta(seconds=30)
store, _, _ = next(rendezvous(f"tcp://127.0.0.1:{port}", 0, 2, timeout=wait))
store = c10d.PrefixStore("updates", store)
group, _ = c10d._new_process_group_helper(
    2, 0, [], c10d.Backend("gloo"), store, group_name=c10d.GroupName("updates"), timeout=wait
)
for tensor in torch.load(file, weights_only=True):
    group.broadcast(tensor, 0).wait()
os._exit(0)  # torch's own threads may abort a usual exit
"""


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def trainer(tensors: list[torch.Tensor], port: int, *, folder: Path) -> Iterator[None]:
    """A process that sends these tensors once the engine has joined it."""
    file = folder / "tensors.pt"
    torch.save(tensors, file)
    process = subprocess.Popen([sys.executable, "-c", TRAINER, str(port), str(file)])
    try:
        yield
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


def said(engine: TorchEngine, name: str) -> list[int]:
    """The model's greedy answer to a prompt; a name is used once."""
    asked = request(name, 40, budget=24, temperature=0.0, ignore_eos=True)
    return engine.generate([asked])[0].tokens


def meeting(port: int, **others: Any) -> dict[str, Any]:
    """Where the group meets, and the engine's rank in it."""
    address = {"master_address": "127.0.0.1", "master_port": port, "backend": "gloo"}
    return {**address, "rank_offset": 1, "world_size": 2, "group_name": "updates", **others}


def test_broadcast_weights_are_used(start_engine: MakeEngine, tmp_path: Path) -> None:
    """A group is joined, its tensors replace ours in their own dtypes, and it is left again."""
    old, new = tiny_model(1), tiny_model(2)
    sent = [new.weights.tensors[NAMES[0]].bfloat16(), new.weights.tensors[NAMES[1]]]
    merged = {**old.weights.tensors, NAMES[0]: sent[0].float(), NAMES[1]: sent[1]}
    expected = said(start_engine(model=old.with_tensors(merged)), "x")
    engine, port = start_engine(model=old), free_port()
    assert said(engine, "a") != expected
    with trainer(sent, port, folder=tmp_path):
        assert engine.ask("init_weights_update_group", **meeting(port)).success
        reply = engine.ask(
            "update_weights_from_distributed",
            names=list(NAMES),
            dtype_names=["bfloat16", "torch.float32"],
            shapes=[list(tensor.shape) for tensor in sent],
            group_name="updates",
        )
    assert reply.success, reply.message
    assert said(engine, "b") == expected
    assert engine.ask("destroy_weights_update_group", group_name="updates").success
    assert not engine.ask("destroy_weights_update_group", group_name="updates").success


def test_a_group_that_another_rank_could_not_join_is_left_again(
    start_engine: MakeEngine, tmp_path: Path
) -> None:
    """What every rank has to do is undone where it could be done, so it can be tried anew."""
    plane, port = start_engine().rank.data_plane, free_port()
    join = ControlRequest("init_weights_update_group", meeting(port))
    leave = ControlRequest("destroy_weights_update_group", {"group_name": "updates"})
    script = [sys.executable, "-c", TRAINER, str(port), str(tmp_path / "no tensors")]
    with subprocess.Popen(script, stderr=subprocess.DEVNULL):
        assert plane.control(join).success
    plane.settle(join.name, agreed=False)
    assert "there are: none" in plane.control(leave).message


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"backend": "nccl"}, "use gloo"),
        ({"backend": "smoke"}, "no backend 'smoke'"),
        ({"rank_offset": 0}, "expected 1 to 1"),
        ({"rank_offset": 2}, "expected 1 to 1"),
        ({"master_port": "x"}, "Expected `int`"),
    ],
    ids=str,
)
def test_groups_that_cannot_be_are_refused(
    start_engine: MakeEngine, wrong: dict[str, object], message: str
) -> None:
    """A backend or a rank that makes no sense here is refused before anybody is met."""
    reply = start_engine().ask("init_weights_update_group", **meeting(1, **wrong))
    assert not reply.success
    assert message in reply.message


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"group_name": "nobody"}, "no group 'nobody' was made here; there are: none"),
        ({"shapes": [[3]]}, "shape (3,), expected (64,)"),
        ({"names": ["model.wrong"]}, "unexpected: model.wrong"),
        ({"dtype_names": ["int8"]}, "got 'int8'"),
        ({"dtype_names": []}, "as many of each"),
        ({"names": [], "dtype_names": [], "shapes": []}, "at least one"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_before_it_is_sent(
    start_engine: MakeEngine, wrong: dict[str, object], message: str
) -> None:
    """Names, shapes and dtypes are checked first, since a broadcast cannot be taken back."""
    right = {"names": ["model.norm.weight"], "dtype_names": ["float32"], "shapes": [[64]]}
    reply = start_engine().ask("update_weights_from_distributed", **{**right, **wrong})
    assert not reply.success
    assert message in reply.message


def test_a_group_nobody_comes_to_is_given_up() -> None:
    """The reply says where and as what it waited."""
    groups = UpdateGroups(torch.device("cpu"), timeout=timedelta(seconds=0.5))
    with pytest.raises(RefusedError, match="as rank 1 of 2"):
        groups.join(GroupAddress(**meeting(free_port())))
