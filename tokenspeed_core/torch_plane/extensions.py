# SPDX-License-Identifier: MIT
"""The stages of plugins' extensions, found once and called in plugin order.

On this plane `batch` is the scheduler's own Batch. `build_model` gets the decoder, `logits` the
tensor [rows, vocab] before sampling (it may change it in place, or return another of its shape),
`sampled` the tokens int64 [rows], all on the device; those of rows that do not complete their prompt
mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from tokenspeed_core.errors import EngineError
from tokenspeed_hookspecs import AdmittedRequest, Batch, DataPlaneExtension

# A stage of a plugin's own: its arguments are those of the stage.
Stage = Callable[..., Any]


class Extensions:
    """Every extension's stages, bound when the plane starts."""

    def __init__(self, extensions: Sequence[DataPlaneExtension]) -> None:
        self._build_model = _bound(extensions, "build_model")
        self._on_admit = _bound(extensions, "on_admit")
        self._prepare_inputs = _bound(extensions, "prepare_inputs")
        self._logits = _bound(extensions, "logits")
        self._sampled = _bound(extensions, "sampled")
        self._on_release = _bound(extensions, "on_release")

    def build_model(self, model: object) -> None:
        """Show the extensions the built model."""
        _call_all(self._build_model, "build_model", model)

    def admitted(self, requests: Sequence[AdmittedRequest]) -> None:
        """Tell of requests before their first forward."""
        _call_all(self._on_admit, "on_admit", requests)

    def prepare_inputs(self, batch: Batch, inputs: dict[str, object]) -> None:
        """Hand each extension what its plugin attached, None if nothing."""
        for name, stage in self._prepare_inputs:
            _call(name, "prepare_inputs", stage, batch, inputs.get(name))

    def logits(self, batch: Batch, logits: Tensor) -> Tensor:
        """Let the extensions change the logits, one after another."""
        for name, stage in self._logits:
            changed = _call(name, "logits", stage, batch, logits)
            if changed is not None:
                logits = _same_shape(name, changed, logits)
        return logits

    def sampled(self, batch: Batch, tokens: Tensor) -> None:
        """Show the tokens."""
        _call_all(self._sampled, "sampled", batch, tokens)

    def released(self, request_ids: Sequence[str]) -> None:
        """Tell of requests that ended."""
        _call_all(self._on_release, "on_release", request_ids)


def _bound(extensions: Sequence[DataPlaneExtension], stage: str) -> list[tuple[str, Stage]]:
    return [(e.name, getattr(e, stage)) for e in extensions if hasattr(e, stage)]


def _call_all(stages: list[tuple[str, Stage]], stage: str, *arguments: object) -> None:
    for name, function in stages:
        _call(name, stage, function, *arguments)


def _call(name: str, stage: str, function: Stage, *arguments: object) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        raise EngineError(
            f"the extension of plugin {name!r} failed in stage {stage}: "
            f"{type(error).__name__}: {error}"
        ) from error


def _same_shape(name: str, changed: Tensor, logits: Tensor) -> Tensor:
    if changed.shape != logits.shape:
        raise EngineError(
            f"the extension of plugin {name!r} returned logits of shape {tuple(changed.shape)}, "
            f"expected {tuple(logits.shape)}"
        )
    return changed
