# SPDX-License-Identifier: MIT
"""Where the model runs: its stream, and marks in it that the host can wait for.

On a CPU every operation is over when it returns; there a mark is reached at once, and nothing is
copied on the way to the host.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tokenspeed_core.errors import ConfigError


class Mark:
    """A place in the device's stream."""

    def __init__(self, event: torch.cuda.Event | None) -> None:
        self._event = event

    @property
    def is_reached(self) -> bool:
        """Whether everything before the mark is done; never waits."""
        return self._event is None or bool(self._event.query())

    def wait(self) -> None:
        """Wait until everything before the mark is done."""
        if self._event is not None:
            self._event.synchronize()


class Device:
    """One device, and the stream of the plane's work on it."""

    def __init__(self, device: torch.device) -> None:
        self.torch_device = device
        self._is_cuda = device.type == "cuda"
        self._stream = torch.cuda.Stream(device) if self._is_cuda else None

    def enter(self) -> None:
        """Make the calling thread work in the plane's stream."""
        if self._stream is not None:
            torch.cuda.set_device(self.torch_device)
            torch.cuda.set_stream(self._stream)

    def mark(self) -> Mark:
        """Mark the stream's present end."""
        return Mark(None if self._stream is None else self._stream.record_event())

    def to_host(self, tensor: Tensor) -> Tensor:
        """Begin to copy a tensor to the host; complete once a later mark is reached."""
        if not self._is_cuda:
            return tensor
        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)


def choose_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is CUDA where there is one, else the CPU."""
    has_cuda = torch.cuda.is_available()
    if name == "auto":
        return torch.device("cuda" if has_cuda else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(
            [f"engine.device: expected auto, cpu or cuda[:n], got {name!r}"]
        ) from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError([f"engine.device: expected auto, cpu or cuda[:n], got {name!r}"])
    count = torch.cuda.device_count() if has_cuda else 0
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ConfigError(
            [
                f"engine.device: {name!r} is not there; torch {torch.__version__} sees {count} "
                "CUDA devices. Is this a CPU build of torch?"
            ]
        )
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the weights' dtype; `auto` is bfloat16 where the device multiplies it natively."""
    if name != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]
    if device.type == "cuda":
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float32
    return torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32
