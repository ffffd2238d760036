# SPDX-License-Identifier: MIT
"""The two halves of a plugin: what its hooks attach, its extension takes, and the other way."""

from __future__ import annotations

from collections.abc import Sequence

from tokenspeed_core.composition.signatures import implemented
from tokenspeed_core.config.nearest import unknown
from tokenspeed_core.testing.conformance.running import ContractEngine, PluginFaultError, running
from tokenspeed_core.testing.conformance.subject import Subject
from tokenspeed_hookspecs import DataPlaneExtension

METHODS = (
    "build_model",
    "on_admit",
    "prepare_inputs",
    "logits",
    "sampled",
    "endings",
    "on_release",
)


def check_halves(subject: Subject) -> list[str]:
    """Run requests; inputs were attached for an extension that takes them, and the reverse."""
    with running(subject) as engine:
        extensions = engine.engine.rank.extensions
        problems = [text for each in extensions for text in _shape(subject, each)]
        engine.until_ended(*(engine.new(kind) for kind in subject.kinds))
        engine.to_idle()
        return problems + _matching(engine, extensions)


def _shape(subject: Subject, extension: DataPlaneExtension) -> list[str]:
    kind = type(extension).__name__
    if getattr(extension, "name", None) != subject.name:
        found = getattr(extension, "name", None)
        return [f"extension {kind} is named {found!r}, so inputs of {subject.name!r} miss it"]
    public = [name for name in dir(extension) if not name.startswith("_")]
    known = [name for name in public if name in METHODS]
    if not known:
        return [f"extension {kind} has none of the methods {', '.join(METHODS)}"]
    return [
        f"extension {kind}: {text}"
        for name in public
        if callable(getattr(extension, name)) and name not in METHODS
        if "did you mean" in (text := unknown("method", name, known=METHODS))
    ]


def _matching(engine: ContractEngine, extensions: Sequence[DataPlaneExtension]) -> list[str]:
    subject, attached = engine.subject, engine.watcher.attached
    bound = {each.name: each for each in extensions}
    problems = [
        f"hook dispatch attaches inputs for {name!r}, and no extension of that name is on the "
        f"scripted plane; return one from extend_data_plane"
        for name in sorted(attached - bound.keys())
    ]
    takes = {name for name, each in bound.items() if hasattr(each, "prepare_inputs")}
    problems += [
        f"inputs are attached for extension {name!r}, which has no prepare_inputs"
        for name in sorted(attached & bound.keys() - takes)
    ]
    if takes and "dispatch" not in implemented(subject.plugin):
        problems.append("the extension has prepare_inputs, and no hook dispatch attaches inputs")
    return problems


def check_batches(subject: Subject) -> list[str]:
    """Tokens that an extension changes stay tokens: inside the vocabulary, one a row."""
    with running(subject, plane={"checked_pages": False}) as engine:
        vocab = engine.engine.plane.model.vocab_size
        streams = engine.until_ended(*(engine.new(kind) for kind in subject.kinds))
        for stream in streams:
            wrong = [token for token in stream.tokens if not 0 <= token < vocab]
            if wrong:
                raise PluginFaultError(
                    f"request {stream.request_id!r} was sent token {wrong[0]}, the vocabulary has "
                    f"{vocab}"
                )
    return []
