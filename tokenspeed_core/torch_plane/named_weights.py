# SPDX-License-Identifier: MIT
"""A decoder's weights by the names a checkpoint gives them, wherever they are stored.

One stored tensor may hold several named ones, one below another, as fused projections do; one name
may be stored twice, as a tied head is. Weights change by replacing whole stored tensors, one at a
time, so that a change needs little memory, and nothing that was handed in is written to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from attrs import frozen
from torch import Tensor

from tokenspeed_core.models.expected_weights import Shape
from tokenspeed_core.models.weights import WeightSource
from tokenspeed_core.torch_plane.stored import Stored


@frozen(eq=False)
class _Place:
    """A stored tensor and the names of what it holds, from its first row down."""

    stored: Stored
    names: tuple[str, ...]


class NamedWeights:
    """The places of all weights; `shapes` are those of the tensors by name, `dtype` how they are
    stored."""

    def __init__(
        self, shapes: Mapping[str, Shape], *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.shapes = shapes
        self.dtype = dtype
        self._device = device
        self._places: list[_Place] = []

    def add(self, stored: Stored, *names: str) -> None:
        """Say where tensors of these names are stored; they are filled in by `load`."""
        assert all(name in self.shapes for name in names), f"unknown weights: {names}"
        self._places.append(_Place(stored, names))

    def load(self, source: WeightSource) -> None:
        """Fill every place."""
        for place in self._places:
            place.stored.put(self._joined([source.load(name) for name in place.names]))

    def update(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the named tensors, of the right shapes, and keep all others."""
        for place in self._places:
            changed = [name in tensors for name in place.names]
            if all(changed):
                place.stored.put(self._joined([tensors[name] for name in place.names]))
            elif any(changed):
                kept = dict(self._parts(place))
                parts = [tensors.get(name, kept[name]) for name in place.names]
                place.stored.put(self._joined(parts))

    def drop(self) -> None:
        """Let go of every tensor; `load` brings them back."""
        for place in self._places:
            place.stored.drop()

    def each(self) -> Iterator[tuple[str, Tensor]]:
        """Every name once with its tensor, on the device; one stored tensor at a time."""
        seen: set[str] = set()
        for place in self._places:
            if not seen.issuperset(place.names):
                yield from self._parts(place)
                seen.update(place.names)

    def _parts(self, place: _Place) -> Iterator[tuple[str, Tensor]]:
        rows = [self.shapes[name][0] for name in place.names]
        yield from zip(place.names, place.stored.dense().split(rows), strict=True)

    def _joined(self, parts: list[Tensor]) -> Tensor:
        """A new tensor, so that neither a file nor a caller can change it afterwards."""
        if len(parts) == 1:
            return parts[0].to(device=self._device, dtype=self.dtype, copy=True)
        return torch.cat([part.to(device=self._device, dtype=self.dtype) for part in parts])
