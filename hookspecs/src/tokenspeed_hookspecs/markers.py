# SPDX-License-Identifier: MIT
"""The decorators that mark a hook's specification and its implementations."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, TypeVar

import pluggy

PROJECT = "tokenspeed"
hookimpl = pluggy.HookimplMarker(PROJECT)
_spec = pluggy.HookspecMarker(PROJECT)

F = TypeVar("F", bound=Callable[..., Any])


class Mode(Enum):
    """What an exception in a hook means."""

    PARTICIPANT = "participant"  # ends the engine, on every rank in the same round
    OBSERVER = "observer"  # is logged and counted; the observer is switched off after a few


def _mark(function: F, mode: Mode, *, firstresult: bool) -> F:
    marked = _spec(function, firstresult=firstresult)
    marked.tokenspeed_mode = mode  # type: ignore[attr-defined]  # pluggy marks functions likewise
    return marked


def participant(function: F) -> F:
    """Specify a hook whose implementations change what happens."""
    return _mark(function, Mode.PARTICIPANT, firstresult=False)


def first_answer(function: F) -> F:
    """Specify a participant hook that ends at the first answer other than None."""
    return _mark(function, Mode.PARTICIPANT, firstresult=True)


def observer(function: F) -> F:
    """Specify a hook whose implementations only watch."""
    return _mark(function, Mode.OBSERVER, firstresult=False)
