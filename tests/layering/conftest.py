# SPDX-License-Identifier: MIT
"""The checkout as the layering tests see it: a path from the top, with slashes, to the content."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TREES = ("tokenspeed_core", "hookspecs", "plugins", "tests", "examples")
BUILT = frozenset({"__pycache__", "build", "dist"})


def _texts(paths: Iterable[Path]) -> dict[str, str]:
    files = sorted(path for path in paths if path.is_file() and not BUILT & set(path.parts))
    return {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}


@pytest.fixture(scope="session")
def python_texts() -> Mapping[str, str]:
    """Every Python file of the repository."""
    return _texts(path for tree in TREES for path in (ROOT / tree).rglob("*.py"))


@pytest.fixture(scope="session")
def texts(python_texts: Mapping[str, str]) -> Mapping[str, str]:
    """Python, TOML, Markdown and build files."""
    loose = [ROOT / "Makefile", ROOT / ".ci" / "run", ROOT / "requirements.txt"]
    top = [*ROOT.glob("*.md"), *ROOT.glob("*.toml")]
    below = [p for tree in TREES for end in ("*.md", "*.toml") for p in (ROOT / tree).rglob(end)]
    return {**python_texts, **_texts([*loose, *top, *below])}


@pytest.fixture(scope="session")
def modules(python_texts: Mapping[str, str]) -> Mapping[str, ast.Module]:
    """Every Python file of the repository, parsed."""
    return {place: ast.parse(text, place) for place, text in python_texts.items()}


@pytest.fixture(scope="session")
def shipped(modules: Mapping[str, ast.Module]) -> Mapping[str, ast.Module]:
    """What the distributions hold: engine, contract and plugins, without their tests."""
    homes = ("tokenspeed_core/", "hookspecs/src/", "plugins/")
    ours = {place: module for place, module in modules.items() if place.startswith(homes)}
    return {place: module for place, module in ours.items() if "tests" not in place.split("/")}
