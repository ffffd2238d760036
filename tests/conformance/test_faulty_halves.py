# SPDX-License-Identifier: MIT
"""Plugins of which one half is missing, deaf, misspelt, or invents tokens."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from tokenspeed_core.testing.conformance.checks import State, check_named
from tokenspeed_core.testing.conformance.subject import Subject
from tokenspeed_hookspecs import Batch, DataPlane, DataPlaneExtension, Plugin, Round, hookimpl


class Extension:
    """An extension with what its plugin says."""

    def __init__(self, name: str) -> None:
        self.name = name


class Listening(Extension):
    """Takes inputs."""

    def prepare_inputs(self, batch: Batch, value: object) -> None:
        """Take them."""


class Misspelt(Listening):
    """Wants to know of releases."""

    def on_realease(self, request_ids: Sequence[str]) -> None:
        """Never called."""


class Overwriting(Extension):
    """Samples what is no token."""

    def sampled(self, batch: Batch, tokens: npt.NDArray[np.int64]) -> None:
        """Overwrite."""
        tokens[:] = -5


class Halved(Plugin):
    """Attaches inputs; `extension` is what the device side has for them."""

    name = "halved"

    @hookimpl
    def extend_data_plane(self, plane: DataPlane) -> Sequence[DataPlaneExtension]:
        return self.extensions()

    @hookimpl
    def dispatch(self, round: Round) -> None:
        assert round.dispatch is not None
        round.dispatch.inputs[self.name] = [0]

    def extensions(self) -> Sequence[DataPlaneExtension]:
        """The other half."""
        return [Listening(self.name)]


class HalfRegistered(Halved):
    """Has no other half."""

    name = "half_registered"

    def extensions(self) -> Sequence[DataPlaneExtension]:
        return []


class MisnamedExtension(Halved):
    """Its other half has another name."""

    name = "misnamed_extension"

    def extensions(self) -> Sequence[DataPlaneExtension]:
        return [Listening("misnamed")]


class DeafExtension(Halved):
    """Its other half takes no inputs."""

    name = "deaf_extension"

    def extensions(self) -> Sequence[DataPlaneExtension]:
        return [Extension(self.name)]


class MisspeltExtension(Halved):
    """One stage of its other half is never called."""

    name = "misspelt_extension"

    def extensions(self) -> Sequence[DataPlaneExtension]:
        return [Misspelt(self.name)]


class SilentHooks(Plugin):
    """The extension waits for inputs that no hook attaches."""

    name = "silent_hooks"

    @hookimpl
    def extend_data_plane(self, plane: DataPlane) -> Sequence[DataPlaneExtension]:
        return [Listening(self.name)]


class InventsTokens(Plugin):
    """Sends what is no token."""

    name = "invents_tokens"

    @hookimpl
    def extend_data_plane(self, plane: DataPlane) -> Sequence[DataPlaneExtension]:
        return [Overwriting(self.name)]


FAULTS: dict[type[Plugin], tuple[str, str]] = {
    HalfRegistered: ("halves", "no extension of that name is on the scripted plane"),
    MisnamedExtension: ("halves", "is named 'misnamed'"),
    DeafExtension: ("halves", "has no prepare_inputs"),
    MisspeltExtension: ("halves", "did you mean 'on_release'"),
    SilentHooks: ("halves", "no hook dispatch attaches inputs"),
    InventsTokens: ("tokens", "was sent token -5"),
}


@pytest.mark.parametrize("plugin", FAULTS, ids=lambda plugin: str(plugin.__name__))
def test_a_fault_is_found_and_named(plugin: type[Plugin]) -> None:
    """The check that the fault belongs to fails, and a message names it."""
    name, text = FAULTS[plugin]
    outcome = check_named(name).run(Subject(plugin=plugin, patience_s=0.3))
    assert outcome.state is State.FAILED
    assert text in "\n".join(outcome.problems)
