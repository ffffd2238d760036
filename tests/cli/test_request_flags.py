# SPDX-License-Identifier: MIT
"""Flags by which an installed plugin lets a request say more."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tokenspeed_core.testing.site import Site

Run = Callable[..., Any]

PLUGIN = """
from tokenspeed_hookspecs import Plugin, Refuse, RequestFlag, Round, hookimpl

class Installed(Plugin):
    name = "{name}"
    features = ("tenant",)
    request_flags = (RequestFlag("tenant", "tenant", "who pays", read=lambda text: int(text)),)

    @hookimpl
    def validate_request(self, round: Round) -> Refuse | None:
        return Refuse(f"said {round.candidate.features}", 400)
"""


@pytest.fixture
def tenants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The flags that choose the plugin, which is installed."""
    monkeypatch.syspath_prepend(str(tmp_path))
    Site(tmp_path).install("tenants", source=PLUGIN)
    return ["--plugins", "tenants"]


@pytest.mark.parametrize("chat", [[], ["--chat"]])
def test_the_flag_becomes_the_requests_feature(
    run: Run, engine_flags: list[str], tenants: list[str], chat: list[str]
) -> None:
    """What the plugin's flag read arrives in the features of each request."""
    ran = run("generate", "x", "--tenant", "7", *chat, *tenants, *engine_flags)
    assert "said {'tenant': 7}" in ran.err


def test_a_request_without_the_flag_has_no_feature(
    run: Run, engine_flags: list[str], tenants: list[str]
) -> None:
    """A flag that is not given adds nothing."""
    assert "said {}" in run("generate", "x", *tenants, *engine_flags).err


@pytest.mark.usefixtures("tenants")
def test_the_flag_of_a_plugin_that_is_not_chosen(run: Run) -> None:
    """The error says which plugin has it; a command that sends no requests does not know it."""
    ran = run("generate", "x", "--tenant", "7")
    expected = "tokenspeed: --tenant is a flag of the plugin 'tenants'; add it to --plugins\n"
    assert (ran.code, ran.err) == (2, expected)
    assert "unknown flag '--tenant'" in run("engine", "--gateway", "ipc:///a", "--tenant", "7").err


def test_a_value_that_cannot_be_read_is_one_error(run: Run, tenants: list[str]) -> None:
    """The plugin's ValueError is told as a wrong flag."""
    ran = run("generate", "x", "--tenant", "seven", *tenants)
    assert ran.code == 2
    assert "--tenant: invalid literal for int()" in ran.err


def test_the_flag_is_known_only_with_its_plugin(run: Run, tenants: list[str]) -> None:
    """Without the plugin the flag is an unknown one."""
    assert "--tenant" in run("generate", "x", "--tenant", "7").err
