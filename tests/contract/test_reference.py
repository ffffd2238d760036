# SPDX-License-Identifier: MIT
"""The contract's page and its lock: neither can drift from the contract."""

from __future__ import annotations

import importlib
import inspect
import subprocess
import sys
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

import attrs
import pytest

import tokenspeed_hookspecs
from tokenspeed_core.composition.signatures import hook_specs
from tokenspeed_hookspecs import Mode, Round

HOME = Path(__file__).resolve().parents[2] / "hookspecs"
PUBLIC = [name for name in tokenspeed_hookspecs.__all__ if name not in {"API_VERSION", "PROJECT"}]


@pytest.fixture
def generator(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script that writes both files."""
    monkeypatch.syspath_prepend(HOME)
    return importlib.import_module("generate_reference")


def digests(**names: Any) -> dict[str, str]:
    """The digests of these names; only while the generator's folder is on the path."""
    found: dict[str, str] = importlib.import_module("contract_surface").digests(names)
    return found


def test_page_and_lock_are_up_to_date() -> None:
    """README.md says what the contract says, and contract.lock is of this contract."""
    command = [sys.executable, str(HOME / "generate_reference.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_change_needs_a_version(generator: ModuleType) -> None:
    """New, gone and different names under an unchanged version are refused, each by name."""
    lock = generator.lock_text("1.0", {"Kept": "1", "Gone": "2", "Changed": "3"})
    problem = generator.lock_problem(lock, "1.0", found={"Kept": "1", "New": "4", "Changed": "5"})
    for text in ("New is new", "Gone is gone", "Changed is different", "Raise API_VERSION"):
        assert text in problem


def test_a_new_version_needs_its_lock(generator: ModuleType) -> None:
    """A raised version with an old lock file asks for the command, not for another version."""
    lock = generator.lock_text("1.0", {"Kept": "1"})
    problem = generator.lock_problem(lock, "1.1", found={"Kept": "1", "New": "2"})
    assert problem.startswith("contract.lock is of version 1.0; run ")
    assert generator.lock_problem(lock, "1.0", found={"Kept": "1"}) is None


def _record(**fields: Any) -> type:
    return attrs.make_class("Record", {name: attrs.field(type=str) for name in fields})


@pytest.mark.usefixtures("generator")
def test_a_field_a_member_and_a_signature_count() -> None:
    """Each change that a plugin could notice changes the digest of its name."""

    class One(Protocol):
        def method(self, first: int) -> None: ...

    class Two(Protocol):
        def method(self, second: int) -> None: ...

    assert digests(X=One) != digests(X=Two)
    assert digests(X=_record(a=1)) != digests(X=_record(a=1, b=1))
    assert digests(X=_record(a=1, b=1)) != digests(X=_record(b=1, a=1))
    assert digests(X=Mode) != digests(X=Enum("Mode", {"OBSERVER": "observer"}))


@pytest.mark.usefixtures("generator")
def test_a_text_does_not_count() -> None:
    """A better docstring is no new version."""

    class One(Protocol):
        """One text."""

        def method(self) -> None:
            """Said so."""

    class Two(Protocol):
        """Another text."""

        def method(self) -> None:
            """Said otherwise."""

    assert digests(X=One) == digests(X=Two)


@pytest.mark.usefixtures("generator")
def test_every_public_name_is_locked_by_what_it_is() -> None:
    """No name's lines are an object's address, which would differ by process."""
    surface = importlib.import_module("contract_surface")
    for name, value in surface.public().items():
        assert not any(" at 0x" in line for line in surface.lines(value)), name


@pytest.mark.parametrize("hook", list(hook_specs()))
def test_a_hook_has_a_mode_an_example_and_its_arguments_annotated(hook: str) -> None:
    """Each hook says what an exception means, how it is used, and what it takes."""
    spec = hook_specs()[hook]
    text = inspect.getdoc(spec.function) or ""
    assert spec.mode in Mode
    assert "Example: `" in text
    assert set(inspect.get_annotations(spec.function)) == {*spec.arguments, "return"}


@pytest.mark.parametrize("hook", list(hook_specs()))
def test_a_hooks_example_is_python(hook: str) -> None:
    """The example can be compiled as a method's body."""
    text = inspect.getdoc(hook_specs()[hook].function) or ""
    code = " ".join(text.partition("Example: `")[2].partition("`")[0].split())
    compile(f"def method(self):\n    {code}\n", hook, "exec")


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_says_what_it_is(name: str) -> None:
    """Every public class has a docstring, and so has every public method."""
    value = getattr(tokenspeed_hookspecs, name)
    if not isinstance(value, type):
        return
    assert inspect.getdoc(value)
    methods = [(each, held) for each, held in vars(value).items() if inspect.isfunction(held)]
    assert [each for each, held in methods if not each.startswith("_") and not held.__doc__] == []


def test_only_phase_hooks_take_a_round() -> None:
    """A round hook takes one argument, the Round, under that name."""
    specs = hook_specs().values()
    with_round = [each for each in specs if "round" in each.arguments]
    assert all(each.arguments == ("round",) for each in with_round)
    assert all(each.mode is Mode.PARTICIPANT for each in specs if each not in with_round)
    assert all("Round" in str(each.function.__annotations__["round"]) for each in with_round)
    assert attrs.has(Round)
