# SPDX-License-Identifier: MIT
"""Reasoning models: what an answer thinks is told apart from what it says.

A family is named as vLLM's and SGLang's reasoning parsers are. Constrained answers are an engine
plugin's business: it is told by a feature whether thinking comes first, and by which family's marks
it ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import define, field, frozen

from tokenspeed_openai.marks import open_at
from tokenspeed_openai.requests import ChatRequest
from tokenspeed_openai.tools import TAG_FEATURE

FEATURE = "reasoning"
OPENING, CLOSING = "<think>", "</think>"
NO_EFFORT = "none"
# What templates call the switch.
SWITCHES = ("enable_thinking", "thinking")


@frozen
class Family:
    """How a family thinks. `is_opened`: the chat template opens the block, and the answer begins
    inside. `switch`: the template's variable that turns thinking on or off."""

    is_opened: bool
    switch: str | None = None
    is_usual: bool = True
    gap: str = ""


FAMILIES: Mapping[str, Family] = {
    "deepseek_r1": Family(is_opened=True),
    "deepseek_v31": Family(is_opened=True, switch="thinking", is_usual=False),
    "kimi": Family(is_opened=False),
    "kimi_k25": Family(is_opened=True, switch="thinking"),
    "minimax": Family(is_opened=True, gap="\n\n"),
    "qwen3": Family(is_opened=False, switch="enable_thinking", gap="\n\n"),
    "qwen3_thinking": Family(is_opened=True, gap="\n\n"),
}


def template_variables(body: ChatRequest) -> dict[str, Any]:
    """What the chat template is told: the effort, and the client's own variables before all."""
    effort = body.reasoning_effort
    found: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
    if effort == NO_EFFORT:
        found |= dict.fromkeys(SWITCHES, False)
    return found | (body.chat_template_kwargs or {})


@frozen
class Thinking:
    """Whether a conversation's answer thinks first, and as which family does."""

    name: str | None
    is_on: bool
    variables: Mapping[str, Any]
    is_separate: bool = True

    @classmethod
    def of(cls, body: ChatRequest, *, parser: str | None) -> Thinking:
        """What a body wants of a server with this parser."""
        variables = template_variables(body)
        if parser is None:
            is_off = any(variables.get(switch) is False for switch in SWITCHES)
            return cls(None, not is_off, variables)
        family = FAMILIES[parser]
        wanted = variables.get(family.switch) if family.switch else None
        is_on = family.is_usual if wanted is None else bool(wanted)
        return cls(parser, is_on, variables, body.separate_reasoning is not False)

    def feature(self, asked: Mapping[str, object], known: frozenset[str]) -> dict[str, object]:
        """What a plugin that constrains the answer is told."""
        if not asked or FEATURE in asked or FEATURE not in known:
            return {}
        if not self.is_on:
            return {FEATURE: False}
        return {} if self.name is None else {FEATURE: self.name}

    def reader(self, features: Mapping[str, object]) -> ThoughtReader | None:
        """What tells thinking and answer apart; None where all is answer."""
        if self.name is None or not self.is_on or not self.is_separate:
            return None
        family = FAMILIES[self.name]
        if not features or TAG_FEATURE in features:
            return ThoughtReader(family.gap, is_inside=family.is_opened)
        # A grammar allows the thinking it was told of, and no other.
        is_behind = features.get(FEATURE) == self.name
        return ThoughtReader(family.gap, is_inside=True) if is_behind else None


@define
class ThoughtReader:
    """Reads one answer: text in, thinking and answer out. What may begin a mark waits."""

    _gap: str
    _is_inside: bool = field(kw_only=True)
    _held: str = field(default="", init=False)
    _is_started: bool = field(default=False, init=False)
    _has_gap: bool = field(default=False, init=False)

    @property
    def is_over(self) -> bool:
        """Whether what comes is answer."""
        return self._is_started and not self._is_inside

    def push(self, text: str, *, is_last: bool) -> tuple[str, str]:
        """What is thinking and what is answer in a piece of it."""
        if self.is_over and not self._has_gap:
            return "", text
        self._held += text
        if not self._is_started:
            self._start(is_last=is_last)
        thought = self._think(is_last=is_last) if self._is_started and self._is_inside else ""
        return thought, self._answer(is_last=is_last)

    def _start(self, *, is_last: bool) -> None:
        begun = self._held.lstrip()
        if begun.startswith(OPENING):
            self._held, self._is_inside = begun[len(OPENING) :], True
        elif OPENING.startswith(begun) and not is_last:
            return
        self._is_started = True

    def _think(self, *, is_last: bool) -> str:
        thought, mark, rest = self._held.partition(CLOSING)
        if mark:
            self._is_inside, self._has_gap, self._held = False, True, rest
            return thought
        border = len(self._held) if is_last else open_at(self._held, CLOSING)
        thought, self._held = self._held[:border], self._held[border:]
        return thought

    def _answer(self, *, is_last: bool) -> str:
        if not self.is_over:
            return ""
        if self._has_gap:
            if self._gap.startswith(self._held) and self._held != self._gap and not is_last:
                return ""
            self._held, self._has_gap = self._held.removeprefix(self._gap), False
        answer, self._held = self._held, ""
        return answer
