# SPDX-License-Identifier: MIT
"""Where a decoder's tensors come from: safetensors files of a folder, or memory.

Opening reads only the files' headers. The tensor library is imported by the first
`load`, so that everything which only asks for names and shapes starts quickly.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from attrs import define, field, frozen
from safetensors import SafetensorError, safe_open

from tokenspeed_core.models.config import ModelConfig
from tokenspeed_core.models.errors import ModelError, bullet_list
from tokenspeed_core.models.expected_weights import Shape, check_weights
from tokenspeed_core.models.fields import read_json_object

if TYPE_CHECKING:
    import torch

# The stored types the decoder can take, by their safetensors names.
STORED_DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}


class WeightSource(Protocol):
    """A set of named tensors; shapes are known without loading any of them."""

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Shape of every tensor by name."""

    def load(self, name: str) -> torch.Tensor:
        """Return one tensor on the CPU, in its stored dtype; it must not be written to."""


@frozen
class TensorWeights:
    """Weights that are in memory already."""

    tensors: Mapping[str, torch.Tensor]

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Shape of every tensor by name."""
        return {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}

    def load(self, name: str) -> torch.Tensor:
        """Return the tensor itself."""
        return self.tensors[name]


@define
class SafetensorsWeights:
    """Weights of one or several safetensors files, mapped into memory when first asked for."""

    shapes: Mapping[str, Shape]
    _files: Mapping[str, Path]
    _opened: dict[Path, Any] = field(factory=dict, init=False)  # boundary: safetensors' handles

    def load(self, name: str) -> torch.Tensor:
        """Return a tensor that shares the file's mapping; ModelError if the file went bad."""
        path = self._files[name]
        try:
            if path not in self._opened:
                self._opened[path] = safe_open(path, framework="pt")
            tensor: torch.Tensor = self._opened[path].get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise ModelError(f"{path}: cannot load {name} ({error})") from error
        return tensor


def open_weights(folder: Path, config: ModelConfig) -> SafetensorsWeights:
    """Find a folder's safetensors files and check them against the config.

    Raises one ModelError when a file is missing, cut short or damaged, or when names,
    shapes or stored types do not fit.
    """
    shapes: dict[str, Shape] = {}
    files: dict[str, Path] = {}
    for path in _weight_files(folder):
        for name, shape in _read_header(path).items():
            if name in shapes:
                raise ModelError(f"{name} is in both {files[name].name} and {path.name} ({folder})")
            shapes[name], files[name] = shape, path
    check_weights(config, shapes, where=str(folder))
    return SafetensorsWeights(shapes=shapes, files=files)


def _weight_files(folder: Path) -> list[Path]:
    index = folder / "model.safetensors.index.json"
    if index.exists():
        return _indexed_files(index)
    found = sorted(folder.glob("*.safetensors"))
    if not found:
        pickles = sorted(path.name for path in folder.glob("*.bin"))
        hint = f"; {pickles[0]} is not read, because pickles can run code" if pickles else ""
        raise ModelError(f"{folder}: no *.safetensors file in it{hint}")
    return found


def _indexed_files(index: Path) -> list[Path]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index}: weight_map must be an object from tensor names to file names")
    names = sorted({str(name) for name in weight_map.values()})
    strange = [name for name in names if Path(name).name != name]
    if strange:
        raise ModelError(f"{index}: file names must not leave the folder, got {strange[0]!r}")
    missing = [name for name in names if not (index.parent / name).exists()]
    if missing:
        headline = f"{index.parent}: files named by {index.name} are missing"
        raise ModelError(bullet_list(headline, missing))
    return [index.parent / name for name in names]


def _read_header(path: Path) -> dict[str, Shape]:
    """Read names and shapes; the library also holds the header against the file's size."""
    try:
        # "numpy" here only keeps the tensor library from being imported: no data is read.
        with safe_open(path, framework="numpy") as handle:
            slices = {name: handle.get_slice(name) for name in list(handle.keys())}
            shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
            dtypes = {name: part.get_dtype() for name, part in slices.items()}
    except (OSError, SafetensorError) as error:
        raise ModelError(
            f"{path} is not a whole safetensors file ({error}); was its download cut short? "
            f"Remove it and fetch it again"
        ) from error
    refused = [f"{name} is {kind}" for name, kind in dtypes.items() if kind not in STORED_DTYPES]
    if refused:
        headline = f"{path}: stored types other than {', '.join(STORED_DTYPES)}"
        raise ModelError(bullet_list(headline, refused))
    return shapes
