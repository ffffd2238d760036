# SPDX-License-Identifier: MIT
"""What `tokenspeed check` says of a plugin, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen
from rich.console import Console
from rich.text import Text

from tokenspeed_core.composition.discovery import InstalledPlugin
from tokenspeed_core.errors import CompositionError
from tokenspeed_core.testing.conformance.checks import (
    CHECKS,
    Outcome,
    State,
    check_named,
    run_checks,
)
from tokenspeed_core.testing.conformance.subject import Features, installed_subject

MARKS = {State.PASSED: ("✓", "green"), State.FAILED: ("✗", "red"), State.LEFT_OUT: ("·", "dim")}


@frozen(kw_only=True)
class Report:
    """Every check of one plugin; `notes` are what a reader should know besides."""

    name: str
    version: str
    source: str
    outcomes: Sequence[Outcome]
    notes: Sequence[str] = ()

    @property
    def has_passed(self) -> bool:
        """Whether the plugin does all that it must."""
        return all(outcome.state is State.PASSED for outcome in self.outcomes)

    def as_map(self) -> dict[str, Any]:
        """The report as JSON knows it."""
        checks = [
            {
                "name": outcome.check.name,
                "demand": outcome.check.demand,
                "state": outcome.state.value,
                "problems": list(outcome.problems),
                "seconds": round(outcome.seconds, 3),
            }
            for outcome in self.outcomes
        ]
        return {
            "plugin": self.name,
            "version": self.version,
            "source": self.source,
            "passed": self.has_passed,
            "notes": list(self.notes),
            "checks": checks,
        }

    def show(self, console: Console) -> None:
        """Print a line a check, and each problem below its check."""
        console.print(Text(f"{self.name} {self.version} ({self.source})", style="bold"))
        for outcome in self.outcomes:
            mark, style = MARKS[outcome.state]
            state = " (left out)" if outcome.state is State.LEFT_OUT else ""
            line = f"  {mark} {outcome.check.name:<11}{outcome.check.demand}{state}"
            console.print(Text(line, style=style), soft_wrap=True)
            for problem in outcome.problems:
                console.print(Text(f"      {problem}"), soft_wrap=True)
        for note in self.notes:
            console.print(Text(f"  note: {note}", style="yellow"), soft_wrap=True)


def report_on(
    source: InstalledPlugin, *, options: Mapping[str, Any], features: Sequence[Features] = ()
) -> Report:
    """Check an installed plugin; one that cannot be imported has failed its first check."""
    notes: list[str] = []
    try:
        subject = installed_subject(source, options=options, features=features)
    except CompositionError as error:
        first = Outcome(check_named("class"), State.FAILED, tuple(error.problems))
        outcomes = [first, *(Outcome(check, State.LEFT_OUT) for check in CHECKS[1:])]
    else:
        outcomes = run_checks(subject)
        tried = {name for kind in subject.kinds for name in kind}
        untried = sorted(set(subject.plugin.features) - tried)
        notes += [f"no request had its feature {name!r}; give one by --feature" for name in untried]
    return Report(
        name=source.name,
        version=source.version,
        source=source.distribution,
        outcomes=outcomes,
        notes=notes,
    )
