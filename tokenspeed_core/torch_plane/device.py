# SPDX-License-Identifier: MIT
"""Where the model runs: its stream, and marks in it that the host can wait for.

On a CPU every operation is over when it returns; there a mark is reached at once, and nothing is
copied on the way to the host.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
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


def placed(values: npt.NDArray[np.generic], device: torch.device) -> Tensor:
    """An array of the host on a device. A copy that is waited for would also wait for the forward
    before this one."""
    # Columns of records are strided views, which torch does not take.
    return torch.from_numpy(np.ascontiguousarray(values)).to(device, non_blocking=True)


def choose_device(name: str, *, local_rank: int = 0, local_size: int = 1) -> torch.device:
    """Return the device of that name; `auto` is CUDA where there is one, else the CPU.

    CUDA without a number is the GPU of that rank among those of its host. ConfigError: there is no
    such device, or it is one GPU for several ranks.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = "cuda" if count else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(
            [f"engine.device: expected auto, cpu or cuda[:n], got {name!r}"]
        ) from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError([f"engine.device: expected auto, cpu or cuda[:n], got {name!r}"])
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ConfigError(
            [
                f"engine.device: {name!r} is not there; torch {torch.__version__} sees {count} "
                "CUDA devices. Is this a CPU build of torch?"
            ]
        )
    if device == torch.device("cuda"):
        # A thread can only be given a device by number. A rank that is shown a single GPU has 0.
        return torch.device("cuda", local_rank % count)
    if device.type == "cuda" and local_size > 1:
        raise ConfigError(
            [
                f"engine.device: {name!r} is one GPU, and {local_size} ranks run on this host; "
                "with 'cuda' each takes its own"
            ]
        )
    return device


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return the weights' dtype; `auto` is bfloat16 where the device multiplies it natively."""
    if name != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[name]
    if device.type == "cuda":
        is_native = torch.cuda.is_bf16_supported(including_emulation=False)
        return torch.bfloat16 if is_native else torch.float32
    return torch.bfloat16 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else torch.float32
