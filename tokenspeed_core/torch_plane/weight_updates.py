# SPDX-License-Identifier: MIT
"""New weights for the running decoder, from a folder, from bytes, or from a group.

Whatever is new is read and checked whole before the first tensor changes, and stays aside until
every rank has as much: an update is made on all ranks or on none. From a folder all weights come;
from bytes and groups as many as the caller has, and the others stay.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping

import torch
from attrs import asdict, frozen
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from torch import Tensor

from tokenspeed_core.models.config import ModelConfig
from tokenspeed_core.models.errors import bullet_list
from tokenspeed_core.models.expected_weights import Shape, check_some_weights
from tokenspeed_core.models.resolve import resolve_model
from tokenspeed_core.torch_plane.named_weights import NamedWeights
from tokenspeed_core.torch_plane.refusal import RefusedError
from tokenspeed_core.torch_plane.shard import Shard, parts_of
from tokenspeed_core.torch_plane.update_groups import UpdateGroups, first_line

LOAD_FORMATS = (None, "auto", "safetensors")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@frozen(kw_only=True)
class FromDisk:
    """A model as `engine.model` names one, of the shape of the one that runs."""

    model_path: str
    load_format: str | None = None
    weight_version: str | None = None


@frozen(kw_only=True)
class FromTensor:
    """`serialized_named_tensors` is one safetensors file's content: bytes, or their base64 text, or
    a list with one such entry. Its tensors are whole, and each rank takes its part of them. Pickled
    tensors are never read."""

    serialized_named_tensors: object
    load_format: str | None = None
    weight_version: str | None = None


@frozen(kw_only=True)
class FromGroup:
    """What a group's sender broadcasts: one name, dtype and shape a tensor, in its order."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    group_name: str = "weight_update_group"
    weight_version: str | None = None


@frozen(eq=False)
class Update:
    """This rank's parts of new tensors, by the names it uses them under, all checked."""

    parts: Mapping[str, Tensor]


class WeightUpdates:
    """Updates of one decoder's weights, which only `apply` changes; RefusedError or ModelError
    where there is no update to be had.

    With `reads_ahead` a folder's weights are in memory once an update is there, as other ranks may
    have to be waited for; without it they are read one by one as they are put in place.
    """

    def __init__(
        self,
        shard: Shard,
        weights: NamedWeights,
        *,
        groups: UpdateGroups,
        reads_ahead: bool = False,
    ) -> None:
        self._config = shard.whole
        self._cuts = shard.cuts()
        self._weights = weights
        self._groups = groups
        self._reads_ahead = reads_ahead

    def apply(self, update: Update) -> None:
        """Put new tensors in the place of the old ones."""
        self._weights.update(update.parts)

    def from_disk(self, order: FromDisk) -> Update:
        """Find a model's weights."""
        _check_format(order.load_format)
        model = resolve_model(order.model_path)
        self._check_config(model.config, where=model.name)
        source = model.open_weights()
        # Every file is opened and every tensor found in it before any is replaced.
        names = dict.fromkeys(cut.name for cut in self._cuts.values())
        update = self._of({name: source.load(name) for name in names})
        return self._read(update, where=model.name) if self._reads_ahead else update

    def from_tensor(self, order: FromTensor) -> Update:
        """Take tensors out of a safetensors file's bytes."""
        _check_format(order.load_format)
        tensors = _deserialized(_one(order.serialized_named_tensors))
        self._check(_shapes(tensors), where="serialized_named_tensors")
        strange = [
            f"{n} is {t.dtype}" for n, t in tensors.items() if t.dtype not in DTYPES.values()
        ]
        if strange:
            raise RefusedError(bullet_list(f"expected {', '.join(DTYPES)}", strange))
        return self._of(tensors)

    def from_group(self, order: FromGroup) -> Update:
        """Receive tensors; all are here before the first one is replaced."""
        shapes = [tuple(shape) for shape in order.shapes]
        if not len(order.names) == len(order.dtype_names) == len(shapes):
            raise RefusedError(
                f"names, dtype_names and shapes: expected as many of each, got {len(order.names)}, "
                f"{len(order.dtype_names)} and {len(shapes)}"
            )
        dtypes = [_dtype(name) for name in order.dtype_names]
        self._check(dict(zip(order.names, shapes, strict=True)), where="names and shapes")
        received = self._groups.receive(order.group_name, shapes, dtypes=dtypes)
        return self._of(dict(zip(order.names, received, strict=True)))

    def _check(self, shapes: Mapping[str, Shape], *, where: str) -> None:
        if not shapes:
            raise RefusedError(f"{where}: expected at least one tensor, got none")
        check_some_weights(self._config, shapes, where=where)

    def _check_config(self, config: ModelConfig, *, where: str) -> None:
        ours, theirs = asdict(self._config), asdict(config)
        different = [
            f"{name}: {theirs[name]}, running {ours[name]}"
            for name in ours
            if theirs[name] != ours[name]
        ]
        if different:
            raise RefusedError(bullet_list(f"{where} is not the model that runs", different))

    def _of(self, tensors: Mapping[str, Tensor]) -> Update:
        return Update(parts_of(tensors, self._cuts))

    def _read(self, update: Update, *, where: str) -> Update:
        """The same in memory of our own, where no file can take it from us any more."""
        dtype = self._weights.dtype
        try:
            read = {name: part.to(dtype, copy=True) for name, part in update.parts.items()}
        except (MemoryError, RuntimeError) as error:
            wanted = sum(part.numel() for part in update.parts.values()) * dtype.itemsize
            raise RefusedError(
                f"{where}: no room for {wanted:,} bytes of new weights beside the old ones, which "
                f"stay until every rank has read its own ({first_line(error)})"
            ) from error
        return Update(read)


def _check_format(load_format: str | None) -> None:
    if load_format not in LOAD_FORMATS:
        raise RefusedError(f"load_format: expected auto or safetensors, got {load_format!r}")


def _one(given: object) -> object:
    if not isinstance(given, list | tuple):
        return given
    if len(given) != 1:
        raise RefusedError(
            "serialized_named_tensors: expected one entry with whole tensors, of which each rank "
            f"takes its part, got {len(given)} entries"
        )
    return given[0]


def _deserialized(given: object) -> dict[str, Tensor]:
    try:
        if isinstance(given, str):
            given = base64.b64decode(given, validate=True)
        if not isinstance(given, bytes | bytearray | memoryview):
            raise RefusedError(
                "serialized_named_tensors: expected the bytes of a safetensors file or their "
                f"base64 text, got {type(given).__name__}"
            )
        return load_safetensors(bytes(given))
    except (SafetensorError, binascii.Error) as error:
        raise RefusedError(
            f"serialized_named_tensors: not a whole safetensors file ({error}); pickled tensors "
            "are not read, because a pickle can run code"
        ) from error


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, Shape]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _dtype(name: str) -> torch.dtype:
    found = DTYPES.get(name.removeprefix("torch."))
    if found is None:
        raise RefusedError(f"dtype_names: expected {', '.join(DTYPES)}, got {name!r}")
    return found
