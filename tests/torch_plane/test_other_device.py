# SPDX-License-Identifier: MIT
"""The plane on a device that is not the CPU, where there is none: it goes other ways there.

A tensor of that device holds one of the CPU and computes with it, but meets none of the host, and
nothing comes back to the host but by copies that nobody waits for.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from tokenspeed_core.errors import ConfigError
from tokenspeed_core.testing.messages import request
from tokenspeed_core.testing.torch_engine import TorchEngine
from tokenspeed_core.torch_plane import plane_build, plane_setup
from tokenspeed_core.torch_plane.device import Device
from tokenspeed_hookspecs import LogprobOptions

# The one device but the CPU whose tensors every build of torch lets one index.
OTHER = torch.device("meta")
COPY = torch.ops.aten.copy_.default
INDEXING = (torch.ops.aten.index.Tensor, torch.ops.aten.index_put_.default)
WAITING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
POOLS = {"num_pages": 40, "snapshot_pages": 30, "host_pages": 60, "max_retracted": 4}
WISHES: list[dict[str, Any]] = [
    {"temperature": 0.0, "logprobs": LogprobOptions(start=3, top=2)},
    {"temperature": 0.8, "top_p": 0.9, "min_p": 0.01, "seed": 3},
    {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.2},
    {"top_k": 5, "logit_bias": {9: 5.0}, "min_new_tokens": 4, "seed": 4},
]


class There(Tensor):
    """A tensor of the other device."""

    held: Tensor
    # boundary: torch's own way to leave functions as they are is not of the type it declares
    __torch_function__: Any = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: Tensor) -> There:
        made: There = Tensor._make_wrapper_subclass(
            cls, held.shape, held.stride(), held.storage_offset(), dtype=held.dtype, device=OTHER
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: object) -> Any:
        raise AssertionError(f"{func} on a thread that does not work there")


class Elsewhere(TorchDispatchMode):
    """A thread's work there."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = dict(kwargs or {})
        if func.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
            with self:
                return func.decompose(*args, **given)
        tensors = [each for each in tree_leaves((args, given)) if isinstance(each, Tensor)]
        there = {id(each.held): each for each in tensors if isinstance(each, There)}
        is_free = func is COPY and args[2:] == (True,)
        gives_there = isinstance(tensors[0], There) if is_free else bool(there)
        if given.get("device") is not None:
            gives_there, given["device"] = given["device"] == OTHER, torch.device("cpu")
        if there and not is_free:
            is_waiting = not gives_there or _waits(func, args)
            assert not is_waiting, f"the host waits for {func}"
            here = [x for x in tensors if not isinstance(x, There) and (x.dim() or x.is_meta)]
            assert not here, f"{func} mixes devices"
        result = func(*tree_map_only(There, _held, args), **tree_map_only(There, _held, given))

        def placed(held: Tensor) -> Tensor:
            # What was changed in place is the very tensor that was given.
            return there[id(held)] if id(held) in there else There(held)

        return tree_map_only(Tensor, placed, result) if gives_there else result


# boundary: torch's modes are made and entered without types
elsewhere: Callable[[], Any] = Elsewhere


def _held(tensor: There) -> Tensor:
    return tensor.held


def _waits(func: Any, args: Any) -> bool:
    """Whether the host has to know values, or how many there are."""
    if func in INDEXING:
        return any(x.dtype == torch.bool for x in tree_leaves(args[1]) if isinstance(x, Tensor))
    return bool(WAITING.intersection(func.tags))


class OtherDevice(Device):
    """The plane's thread works there from its start."""

    def enter(self) -> None:
        elsewhere().__enter__()

    def to_host(self, tensor: Tensor) -> Tensor:
        assert isinstance(tensor, There)
        return tensor.held.clone()


def answers(engine: TorchEngine) -> tuple[list[list[int]], list[float]]:
    """Tokens and logprobs of prompts of one and several chunks, and of each way to choose."""
    prompts = [[(n + 7 * i) % 290 for i in range(size)] for n, size in enumerate((150, 33, 70, 5))]
    asked = zip("abcd", prompts, WISHES, strict=True)
    found = engine.generate([request(name, prompt, budget=8, **w) for name, prompt, w in asked])
    return [stream.tokens for stream in found], found[0].logprobs


def test_an_engine_answers_there_as_on_the_cpu(
    start_engine: Callable[..., TorchEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With requests whose pages leave the device meanwhile, and come back."""
    scheduler = {"max_scheduled_tokens": 64, "force_retraction_every": 4, **POOLS}
    tokens, logprobs = answers(start_engine(scheduler=scheduler))
    monkeypatch.setattr(plane_setup, "choose_device", lambda *_, **__: OTHER)
    monkeypatch.setattr(plane_build, "Device", OtherDevice)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (1 << 30, 1 << 30))
    tokens_there, logprobs_there = answers(start_engine(scheduler=scheduler))
    assert tokens_there == tokens
    assert logprobs_there == pytest.approx(logprobs, abs=1e-4)


def test_pools_that_leave_no_room_for_the_weights_are_refused(
    start_engine: Callable[..., TorchEngine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With as much memory as the pools take the start is refused, with the weights' more it is
    not."""
    monkeypatch.setattr(plane_setup, "choose_device", lambda *_, **__: OTHER)
    monkeypatch.setattr(plane_build, "Device", OtherDevice)
    free = 0
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, free))
    for _ in range(2):
        with pytest.raises(ConfigError, match="beside the weights") as refused:
            start_engine()
        found = re.search(
            r"([\d,]+) in all, and meta beside the weights has (-?[\d,]+)", str(refused.value)
        )
        assert found is not None
        pools, left = (int(each.replace(",", "")) for each in found.groups())
        free, weights = pools, free - left
    free = pools + weights
    start_engine()


@pytest.mark.parametrize(
    "mistake",
    [
        lambda x: x + torch.ones(3),
        lambda x: x[torch.tensor([1])],
        lambda x: x.copy_(torch.ones(3)),
        lambda x: x + torch.tensor([1.0], device=OTHER),
        lambda x: x[x > 0],
        lambda x: x.repeat_interleave(x.long()),
        lambda x: x.cpu(),
        lambda x: bool(x.all()),
    ],
)
def test_a_mistake_is_seen(mistake: Callable[[Tensor], object]) -> None:
    """Tensors of both devices together, and a host that waits for the other."""
    with torch.inference_mode(), elsewhere():
        there = torch.arange(3.0, device=OTHER)
        with pytest.raises(AssertionError, match=r"the host waits|mixes devices"):
            mistake(there)
