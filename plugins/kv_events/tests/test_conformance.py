# SPDX-License-Identifier: MIT
"""The suite that every plugin passes."""

from __future__ import annotations

from tokenspeed_core.testing.conformance.checks import run_checks
from tokenspeed_core.testing.conformance.subject import Subject
from tokenspeed_kv_events.plugin import KvEvents


def test_the_conformance_suite_passes() -> None:
    """Several engines in a process, each with a publisher that needs no address."""
    outcomes = run_checks(Subject(plugin=KvEvents, options={"publisher": "log"}))
    assert [(each.check.name, each.problems) for each in outcomes if each.problems] == []
