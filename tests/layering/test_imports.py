# SPDX-License-Identifier: MIT
"""Imports go one way: contract, then engine; contract, then plugin."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest

SCHEDULER_MODULES = frozenset({"tokenspeed_core/scheduling/native.py"})
CORE_MAY = frozenset({"tokenspeed_core", "tokenspeed_hookspecs", "tokenspeed_scheduler"})
CONTRACT_MAY = frozenset({"tokenspeed_hookspecs", "attrs", "pluggy", "numpy"})
Trees = Mapping[str, ast.Module]


def _imported(module: ast.Module) -> Iterator[str]:
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]


def _ours(module: ast.Module) -> set[str]:
    return {name for name in _imported(module) if name.startswith("tokenspeed_")}


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr.strip()


def test_one_module_imports_the_scheduler_wheel(shipped: Trees) -> None:
    """Only the scheduler driver imports the wheel."""
    users = {place for place, tree in shipped.items() if "tokenspeed_scheduler" in _imported(tree)}
    assert users <= SCHEDULER_MODULES


def test_the_core_imports_no_plugin(shipped: Trees) -> None:
    """Of our packages, the engine imports itself, the contract and the wheel."""
    core = {place: tree for place, tree in shipped.items() if place.startswith("tokenspeed_core/")}
    assert {
        place: _ours(tree) - CORE_MAY for place, tree in core.items() if _ours(tree) - CORE_MAY
    } == {}


def test_the_contract_needs_almost_nothing(shipped: Trees) -> None:
    """The contract imports attrs, pluggy, numpy (for types) and the standard library."""
    allowed = CONTRACT_MAY | sys.stdlib_module_names
    contract = {place: tree for place, tree in shipped.items() if place.startswith("hookspecs/")}
    foreign = {place: set(_imported(tree)) - allowed for place, tree in contract.items()}
    assert {place: names for place, names in foreign.items() if names} == {}


def test_a_plugin_imports_neither_engine_nor_plugin(shipped: Trees) -> None:
    """Of our packages, a plugin imports the contract and itself."""
    plugins = {place: tree for place, tree in shipped.items() if place.startswith("plugins/")}
    for place, tree in plugins.items():
        own = "tokenspeed_" + place.split("/")[1]
        assert _ours(tree) <= {own, "tokenspeed_hookspecs"}, place


@pytest.mark.parametrize("module", ["tokenspeed_hookspecs", "tokenspeed_core.cli.main"])
def test_importing_it_loads_nothing_heavy(module: str) -> None:
    """The contract and the command line import without torch or the scheduler wheel."""
    heavy = "{'torch', 'transformers', 'tokenspeed_scheduler'}"
    assert _run(f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))") == "[]"


def test_importing_the_contract_leaves_numpy_out() -> None:
    """A plugin's small module can be imported where there is no numpy."""
    assert _run("import sys, tokenspeed_hookspecs; print('numpy' in sys.modules)") == "False"
