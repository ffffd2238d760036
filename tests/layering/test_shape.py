# SPDX-License-Identifier: MIT
"""How large a file and a function may grow, and what each file opens with."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import PurePosixPath

FILE_LINES = 400
FUNCTION_LINES = 60
VAGUE = frozenset({"utils", "util", "common", "helpers", "helper", "misc", "manager"})
SPDX = "SPDX-License-Identifier: MIT"
Function = ast.FunctionDef | ast.AsyncFunctionDef
Trees = Mapping[str, ast.Module]
Texts = Mapping[str, str]


def _functions(module: ast.Module) -> list[Function]:
    return [node for node in ast.walk(module) if isinstance(node, Function)]


def _classes(module: ast.Module) -> list[ast.ClassDef]:
    return [node for node in ast.walk(module) if isinstance(node, ast.ClassDef)]


def _lines(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def test_each_file_names_its_licence(texts: Texts) -> None:
    """An SPDX line stands among the first two lines of every source and settings file."""
    named = {place: text for place, text in texts.items() if not place.endswith((".md", ".txt"))}
    heads = {place: "".join(text.splitlines()[:2]) for place, text in named.items()}
    assert [place for place, head in heads.items() if SPDX not in head] == []


def test_files_stay_small(python_texts: Texts) -> None:
    """No Python file has more than 400 lines."""
    sizes = {place: len(text.splitlines()) for place, text in python_texts.items()}
    assert {place: size for place, size in sizes.items() if size > FILE_LINES} == {}


def test_functions_stay_small(modules: Trees) -> None:
    """No function has more than 60 lines."""
    found = [(place, function) for place, tree in modules.items() for function in _functions(tree)]
    long = [(place, f.name, _lines(f)) for place, f in found if _lines(f) > FUNCTION_LINES]
    assert long == []


def test_a_module_is_named_by_what_it_holds(shipped: Trees) -> None:
    """No module or package has a name that would hold anything."""
    parts = {place: set(PurePosixPath(place).with_suffix("").parts) for place in shipped}
    assert [place for place, names in parts.items() if names & VAGUE] == []


def test_modules_hold_no_state(shipped: Trees) -> None:
    """No function of a shipped module rebinds a name of the module."""
    rebinds = {p: any(isinstance(n, ast.Global) for n in ast.walk(t)) for p, t in shipped.items()}
    assert [place for place, found in rebinds.items() if found] == []


def test_there_are_no_mixins(modules: Trees) -> None:
    """Composition only: no class is called a mixin."""
    names = [(place, each.name) for place, tree in modules.items() for each in _classes(tree)]
    assert [(place, name) for place, name in names if name.lower().endswith("mixin")] == []


def test_annotations_are_not_evaluated(modules: Trees, python_texts: Texts) -> None:
    """Every module with a function or a class postpones its annotations."""
    coded = [place for place, tree in modules.items() if _functions(tree) or _classes(tree)]
    line = "from __future__ import annotations"
    assert [place for place in coded if line not in python_texts[place]] == []


def test_a_test_states_its_fact(modules: Trees) -> None:
    """Every test function has a docstring."""
    found = [(place, function) for place, tree in modules.items() for function in _functions(tree)]
    tests = [(place, f) for place, f in found if f.name.startswith("test_")]
    assert [(place, f.name) for place, f in tests if not ast.get_docstring(f)] == []
