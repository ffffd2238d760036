# SPDX-License-Identifier: MIT
"""The suite that every plugin passes."""

from __future__ import annotations

from tokenspeed_core.testing.conformance.checks import run_checks
from tokenspeed_core.testing.conformance.subject import Subject
from tokenspeed_metrics.plugin import Metrics


def test_the_conformance_suite_passes() -> None:
    """With every option at its default, several engines in a process among it."""
    outcomes = run_checks(Subject(plugin=Metrics))
    assert [(each.check.name, each.problems) for each in outcomes if each.problems] == []
