# SPDX-License-Identifier: MIT
"""The stages of plugins' extensions, found once and called in plugin order.

On this plane `batch` is the scheduler's own Batch. `build_model` gets the decoder, `logits` the
tensor [rows, vocab] in the model's dtype before sampling (it may change it in place, or return
another of its shape), `sampled` the tokens int64 [rows], which it may change in place; all are on
the device. `endings` runs on the loop's thread, the others on the plane's. Tokens of rows that do
not complete their prompt mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import define
from torch import Tensor

from tokenspeed_core.errors import EngineError
from tokenspeed_hookspecs import AdmittedRequest, Batch, DataPlaneExtension, FinishReason


@define
class _Stage:
    """One stage of every extension that has it, by plugin name."""

    name: str
    # The plugins' own methods, found by name: what they take is the stage's contract.
    functions: dict[str, Callable[..., Any]]

    def call(self, *arguments: object) -> None:
        for plugin in self.functions:
            self.call_one(plugin, *arguments)

    def call_one(self, plugin: str, *arguments: object) -> Any:
        try:
            return self.functions[plugin](*arguments)
        except Exception as error:
            raise EngineError(
                f"the extension of plugin {plugin!r} failed in stage {self.name}: "
                f"{type(error).__name__}: {error}"
            ) from error


class Extensions:
    """Every extension's stages, bound when the plane starts."""

    def __init__(self, extensions: Sequence[DataPlaneExtension]) -> None:
        self._build_model = _bound(extensions, "build_model")
        self._on_admit = _bound(extensions, "on_admit")
        self._prepare_inputs = _bound(extensions, "prepare_inputs")
        self._logits = _bound(extensions, "logits")
        self._sampled = _bound(extensions, "sampled")
        self._endings = _bound(extensions, "endings")
        self._on_release = _bound(extensions, "on_release")

    def build_model(self, model: object) -> None:
        """Show the extensions the built model."""
        self._build_model.call(model)

    def admitted(self, requests: Sequence[AdmittedRequest]) -> None:
        """Tell of requests before their first forward."""
        self._on_admit.call(requests)

    def prepare_inputs(self, batch: Batch, inputs: dict[str, object]) -> None:
        """Hand each extension what its plugin attached, None if nothing."""
        for name in self._prepare_inputs.functions:
            self._prepare_inputs.call_one(name, batch, inputs.get(name))

    def logits(self, batch: Batch, logits: Tensor) -> Tensor:
        """Let the extensions change the logits, one after another."""
        for name in self._logits.functions:
            changed = self._logits.call_one(name, batch, logits)
            if changed is not None:
                logits = _same_shape(changed, logits, plugin=name)
        return logits

    def sampled(self, batch: Batch, tokens: Tensor) -> None:
        """Show the tokens."""
        self._sampled.call(batch, tokens)

    def endings(self, batch: Batch) -> dict[int, FinishReason]:
        """The requests this forward ends, by row; an earlier extension's word stands."""
        found: dict[int, FinishReason] = {}
        for name in self._endings.functions:
            found = {**self._endings.call_one(name, batch), **found}
        return found

    def released(self, request_ids: Sequence[str]) -> None:
        """Tell of requests that ended."""
        self._on_release.call(request_ids)


def _bound(extensions: Sequence[DataPlaneExtension], stage: str) -> _Stage:
    found = {e.name: getattr(e, stage) for e in extensions if hasattr(e, stage)}
    return _Stage(stage, found)


def _same_shape(changed: Tensor, logits: Tensor, *, plugin: str) -> Tensor:
    if changed.shape != logits.shape:
        raise EngineError(
            f"the extension of plugin {plugin!r} returned logits of shape {tuple(changed.shape)}, "
            f"expected {tuple(logits.shape)}"
        )
    return changed
