# SPDX-License-Identifier: MIT
"""`tokenspeed new-plugin`: the package it writes is a whole one."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

import pytest

from tokenspeed_core.cli.main import main
from tokenspeed_core.errors import ConfigError
from tokenspeed_core.template.package import NewPackage
from tokenspeed_core.testing.workplace import Workplace


def test_the_package_installs_and_passes_at_once(workplace: Workplace) -> None:
    """Written, installed and tested with nothing changed; the engine has it then."""
    workplace.must("tokenspeed new-plugin short_answers")
    workplace.must("pip install -q -e tokenspeed-short-answers")
    assert " passed" in workplace.must("pytest -q tokenspeed-short-answers")
    assert "loaded" in workplace.must("tokenspeed plugins --plugins short_answers")


def test_names_follow_one_rule() -> None:
    """Folder, distribution, package and class are made of the plugin's name."""
    package = NewPackage("two_words")
    names = (package.distribution, package.package, package.class_name)
    assert names == ("tokenspeed-two-words", "tokenspeed_two_words", "TwoWords")


@pytest.mark.parametrize("name", ["Upper", "a-b", "1st", "engine", "batch_log", ""])
def test_a_name_that_no_plugin_can_have_is_refused(name: str, tmp_path: Path) -> None:
    """Nothing is written for it."""
    with pytest.raises(ConfigError):
        NewPackage(name).write(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_exists_is_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second package of a name is refused with code 2."""
    assert main(["new-plugin", "mine", "--into", str(tmp_path)]) == 0
    assert main(["new-plugin", "mine", "--into", str(tmp_path)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_what_is_written_is_python_and_toml(tmp_path: Path) -> None:
    """Every file can be read by what reads it, and no placeholder is left."""
    folder = NewPackage("mine").write(tmp_path)
    texts = {path: path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert [path for path, text in texts.items() if "$" in text] == []
    for path, text in texts.items():
        if path.suffix == ".py":
            ast.parse(text)
    tomllib.loads(texts[folder / "pyproject.toml"])
