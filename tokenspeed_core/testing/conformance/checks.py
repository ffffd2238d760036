# SPDX-License-Identifier: MIT
"""Every check of the contract in its order, with what it holds the plugin to."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from enum import Enum

from attrs import field, frozen

from tokenspeed_core.errors import CompositionError, EngineError
from tokenspeed_core.testing.conformance.running import PluginFaultError
from tokenspeed_core.testing.conformance.subject import Subject

PACKAGE = "tokenspeed_core.testing.conformance"


class State(Enum):
    """What came of a check."""

    PASSED = "passed"
    FAILED = "failed"
    LEFT_OUT = "left out"  # an earlier check failed, and this one needs what it checks


@frozen
class Check:
    """One demand on a plugin: `function`, in a module of this package, returns every breach.

    One that is `basic` must hold before an engine with the plugin can be composed.
    """

    name: str
    demand: str
    module: str
    function: str
    is_basic: bool = False

    def run(self, subject: Subject) -> Outcome:
        """Run it; what is raised is a breach too."""
        check: Callable[[Subject], list[str]]
        check = getattr(importlib.import_module(f"{PACKAGE}.{self.module}"), self.function)
        start = time.perf_counter()
        try:
            problems = check(subject)
        except Exception as error:
            problems = told(error)
        state = State.FAILED if problems else State.PASSED
        return Outcome(self, state, tuple(problems), time.perf_counter() - start)


@frozen
class Outcome:
    """What came of one check of one plugin."""

    check: Check
    state: State
    problems: tuple[str, ...] = ()
    seconds: float = field(default=0.0, eq=False)


CHECKS = (
    Check("class", "its hooks, names and options class are the contract's", "declarations",
          "check_class", is_basic=True),
    Check("import", "importing it is light and starts nothing", "declarations", "check_import"),
    Check("options", "options come back from TOML and flags", "declarations", "check_options",
          is_basic=True),
    Check("commands", "its commands can be listed without an engine", "declarations",
          "check_commands"),
    Check("ranks", "mirrored ranks stay identical, and no hook waits", "mirroring",
          "check_mirroring", is_basic=True),
    Check("traffic", "requests run to their end", "requests", "check_traffic", is_basic=True),
    Check("halves", "hooks and extension fit together", "halves", "check_halves"),
    Check("tokens", "what is sent are tokens of the vocabulary", "halves", "check_batches"),
    Check("aborts", "an abort in any state ends a request once", "requests", "check_aborts"),
    Check("operations", "its control operations answer once", "requests", "check_operations"),
    Check("pauses", "pauses, releases and flushes drain and freeze", "controls", "check_pauses"),
    Check("idle", "an idle engine may wait and release", "controls", "check_idle"),
    Check("sharing", "instances share no state", "sharing", "check_sharing"),
    Check("life", "stop leaves nothing behind", "leaks", "check_life"),
    Check("unstarted", "what never started leaves nothing either", "leaks", "check_unstarted"),
    Check("stop", "it can be stopped with requests held", "controls", "check_stop"),
    Check("seeds", "simulated ranks with faults hold what they must", "simulated", "check_seeds"),
    Check("failures", "a raise in a hook is handled by its mode", "failures", "check_failures"),
)  # fmt: skip


def check_named(name: str) -> Check:
    """The check of a name."""
    return next(check for check in CHECKS if check.name == name)


def run_checks(subject: Subject, checks: Sequence[Check] = CHECKS) -> list[Outcome]:
    """Run the checks in their order; after a basic one that failed the rest are left out."""
    outcomes: list[Outcome] = []
    for check in checks:
        broken = [each for each in outcomes if each.check.is_basic and each.problems]
        is_left_out = broken and check.module != "declarations"
        outcomes.append(Outcome(check, State.LEFT_OUT) if is_left_out else check.run(subject))
    return outcomes


def told(error: Exception) -> list[str]:
    """An exception as sentences; the kinds that name a plugin already need no type in front."""
    if isinstance(error, CompositionError):
        return list(error.problems)
    if isinstance(error, (PluginFaultError, EngineError)):
        return [str(error)]
    return [f"{type(error).__name__}: {error}"]
