# SPDX-License-Identifier: MIT
"""Where the weights come back from after their memory was released.

On a GPU that is a copy in host memory. On the CPU it is where they were loaded from, as long as
they are what was loaded; weights that were replaced since are written to a file of our own,
because the one they came from is somebody else's and may be gone by then.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

import torch

from tokenspeed_core.errors import EngineError
from tokenspeed_core.models.safetensors_file import write_safetensors
from tokenspeed_core.models.weights import SafetensorsWeights, TensorWeights, WeightSource
from tokenspeed_core.torch_plane.named_weights import NamedWeights

STORED_AS = {torch.float32: "F32", torch.bfloat16: "BF16"}


class WeightsAside:
    """`original` opens what the decoder was loaded from. `are_changed` is set by who changes them.

    Between `put` and `take` the weights are here and nowhere else.
    """

    def __init__(self, original: Callable[[], WeightSource]) -> None:
        self._original = original
        self.are_changed = False
        self._open: Callable[[], WeightSource] | None = None
        self._folder: TemporaryDirectory[str] | None = None

    def put(self, weights: NamedWeights, *, dtype: torch.dtype, device: torch.device) -> None:
        """Make sure that the weights can be dropped; EngineError if there is no room for them."""
        if device.type == "cuda":
            copies = TensorWeights({name: tensor.cpu() for name, tensor in weights.each()})
            self._open = lambda: copies
        elif self.are_changed:
            written = self._write(weights, STORED_AS[dtype])
            self._open = lambda: written
        else:
            self._open = self._original

    def take(self, weights: NamedWeights) -> None:
        """Load them again, and keep nothing."""
        assert self._open is not None, "weights come back after they were put aside"
        weights.load(self._open())
        self.forget()

    def forget(self) -> None:
        """Remove what was put aside."""
        self._open = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _write(self, weights: NamedWeights, stored_as: str) -> WeightSource:
        names = [name for name, _ in weights.each()]
        shapes = {name: weights.shapes[name] for name in names}
        tensors = ((name, tensor.float().numpy()) for name, tensor in weights.each())
        try:
            self._folder = TemporaryDirectory(prefix="tokenspeed-weights-")
            file = Path(self._folder.name) / "model.safetensors"
            write_safetensors(file, shapes, tensors=tensors, dtype=stored_as)
        except OSError as error:
            self.forget()
            raise EngineError(
                "no room to keep the replaced weights while their memory is released: "
                f"{error.filename or gettempdir()}: {error.strerror}; TMPDIR chooses the place"
            ) from error
        return SafetensorsWeights(shapes=shapes, files=dict.fromkeys(names, file))
