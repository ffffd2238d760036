# SPDX-License-Identifier: MIT
"""Plugins that simulated ranks load besides their own, and requests that mean something to them.

A guest may refuse settings, hold requests on threads of its own, refuse them, and give those that
name a feature of its other tokens. It may not change anybody else's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from attrs import evolve, field, frozen

from tokenspeed_core.composition.build import Surroundings, build_resolved
from tokenspeed_core.composition.resolve import resolve
from tokenspeed_core.composition.selection import PluginChoice
from tokenspeed_core.errors import CompositionError
from tokenspeed_core.loop.parts import LoopParts
from tokenspeed_core.loop.registered import RegisteredRequests
from tokenspeed_core.scheduling.native import NativeScheduler
from tokenspeed_core.testing.conformance.subject import Features, Subject
from tokenspeed_core.testing.engine import EngineSetup
from tokenspeed_core.testing.scripted_plane import ScriptedDataPlane
from tokenspeed_core.testing.small_tokenizer import small_tokenizer
from tokenspeed_hookspecs import AdmissionStage, Refuse, Request, Round, Verdict

FEATURED = 0.6  # of the requests, where guests know features


@frozen
class Guests:
    """`features` are drawn for requests; `patience_s` is how long their threads may take for what
    is waited for."""

    plugins: tuple[PluginChoice, ...] = ()
    features: tuple[Features, ...] = ()
    patience_s: float = 0.0

    @classmethod
    def of(cls, *subjects: Subject) -> Guests:
        """Plugins under test."""
        features = [kind for each in subjects for kind in each.kinds if kind]
        patience_s = max((each.patience_s for each in subjects), default=0.0)
        return cls(tuple(each.choice for each in subjects), tuple(features), patience_s)

    def __bool__(self) -> bool:
        return bool(self.plugins)

    def welcomed(self, setup: EngineSetup) -> EngineSetup:
        """The setup with the guests, and the tokenizer that a plugin may ask for."""
        if not self:
            return setup
        tokenizer = small_tokenizer()
        return evolve(
            setup,
            plugins=(*setup.plugins, *self.plugins),
            plane={"vocab_size": tokenizer.vocab_size, **setup.plane},
            tokenizer=tokenizer,
            decode_text=tokenizer.decode,
        )

    @property
    def shown(self) -> Sequence[str]:
        """The plugins, with their options."""
        return [f"{_name(each)} {dict(each.options)}" for each in self.plugins]

    def feature_of(self, rng: random.Random) -> Features:
        """A drawn feature, or none."""
        if not self.features or rng.random() > FEATURED:
            return {}
        return rng.choice(self.features)


def _name(choice: PluginChoice) -> str:
    return str(getattr(choice.plugin, "name", choice.plugin))


def refusal(setup: EngineSetup) -> str:
    """Why no rank can be composed so; empty if one can. CompositionError: a plugin's class or
    options cannot be, whatever the settings."""
    config = setup.config()
    resolved = setup.resolved or resolve(config, setup.plugins)
    around = Surroundings(
        frontend=setup.frontend,
        tokenizer=setup.tokenizer,
        decode_text=setup.decode_text,
        make_data_plane=ScriptedDataPlane,
        make_scheduler=NativeScheduler,
    )
    try:
        build_resolved(config, resolved, surroundings=around).stop()
    except CompositionError as error:
        return "; ".join(error.problems)
    return ""


Note = Callable[[str], None]


@frozen
class NotedEnds:
    """The requests that a rank's plugins ended, by a refusal or an abort."""

    names: set[str] = field(factory=set)

    def stand_between(self, parts: LoopParts) -> None:
        """See the verdicts of stages and of `validate_request`."""
        parts.stages = [_NotedStage(stage, self.names.add) for stage in parts.stages]
        validate = parts.hooks.validate_request
        if validate is None:
            return

        def validated(round: Round) -> Refuse | None:
            found = validate(round)
            if found is not None and round.candidate is not None:
                self.names.add(round.candidate.request_id)
            return found

        parts.hooks.validate_request = validated

    def watch(self, requests: RegisteredRequests) -> RegisteredRequests:
        """The same requests, with aborts seen."""
        return _NotedRequests(requests, self.names.add)


@frozen
class _NotedStage:
    stage: AdmissionStage
    note: Note

    @property
    def name(self) -> str:
        return self.stage.name

    def enter(self, request: Request) -> Verdict:
        verdict = self.stage.enter(request)
        return self._noted(request, verdict)

    def poll(self, held: Sequence[Request]) -> Sequence[int]:
        return self.stage.poll(held)

    def settle(self, held: Sequence[Request], agreed: Sequence[int]) -> Sequence[Verdict]:
        verdicts = self.stage.settle(held, agreed)
        for request, verdict in zip(held, verdicts, strict=False):
            self._noted(request, verdict)
        return verdicts

    def leave(self, request_id: str) -> None:
        self.stage.leave(request_id)

    def _noted(self, request: Request, verdict: Verdict) -> Verdict:
        if isinstance(verdict, Refuse):
            self.note(request.request_id)
        return verdict


class _NotedRequests(RegisteredRequests):
    def __init__(self, requests: RegisteredRequests, note: Note) -> None:
        vars(self).update(vars(requests))
        self._note = note

    def abort(self, request_id: str, message: str, *, notify: bool = True) -> None:
        self._note(request_id)
        super().abort(request_id, message, notify=notify)
