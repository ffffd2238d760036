# SPDX-License-Identifier: MIT
"""The order of plugins: `after`, then the alphabet, whatever came first."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenspeed_core.composition.ordering import order
from tokenspeed_core.composition.rank import Rank
from tokenspeed_core.errors import CompositionError
from tokenspeed_core.testing.site import Site
from tokenspeed_hookspecs import Plugin, Round, hookimpl

ONE_PROCESS = """
import sys
sys.path[:0] = sys.argv[1:]
from tokenspeed_core.composition.build import build_rank
from tokenspeed_core.config import EngineConfig, EngineSection
chosen = ("moss", "fern", "aster")
config = EngineConfig(engine=EngineSection(data_plane="scripted"), plugins=chosen)
rank = build_rank(config)
print([plugin.name for plugin in rank.plugins], rank.fingerprint())
"""


def recorder(name: str, *, seen: list[str], after: tuple[str, ...] = ()) -> type[Plugin]:
    """A plugin that notes when its hook is called."""

    class Recorder(Plugin):
        @hookimpl
        def planned(self, round: Round) -> None:
            seen.append(name)

    Recorder.name, Recorder.after = name, after
    return Recorder


def test_ties_are_alphabetical() -> None:
    """Without `after`, names decide."""
    assert order({"c": (), "a": (), "b": ()}) == ["a", "b", "c"]


def test_after_comes_before_the_alphabet() -> None:
    """A plugin follows those it names; others stay where the alphabet has them."""
    assert order({"a": ("z",), "b": (), "z": ()}) == ["b", "z", "a"]


def test_after_one_that_is_not_loaded_means_nothing() -> None:
    """`after` orders what is there."""
    assert order({"b": ("a",), "c": ()}) == ["b", "c"]


def test_every_cycle_is_named() -> None:
    """Two cycles are two problems, each with its members."""
    with pytest.raises(CompositionError) as caught:
        order({"a": ("b",), "b": ("a",), "c": ("d",), "d": ("e",), "e": ("c",), "f": ()})
    first, second = caught.value.problems
    assert "'a' after 'b'" in first
    assert "'b' after 'a'" in first
    assert all(f"'{one}' after '{two}'" in second for one, two in ("cd", "de", "ec"))


@given(st.permutations("abcdef"), st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5))))
def test_an_order_keeps_every_after(names: list[str], pairs: set[tuple[int, int]]) -> None:
    """Whatever has no cycle is ordered, and every `after` holds in it."""
    after = {
        name: [names[i] for i, j in sorted(pairs) if i < j == at] for at, name in enumerate(names)
    }
    found = order(after)
    assert sorted(found) == sorted(names)
    assert all(found.index(each) < found.index(name) for name in names for each in after[name])


@pytest.mark.parametrize("chosen", list(permutations("abc")))
def test_hooks_are_called_in_order(compose: Callable[..., Rank], chosen: tuple[str, ...]) -> None:
    """However plugins are given, pluggy's reverse order included, calls follow the order."""
    seen: list[str] = []
    afters = {"a": ("c",), "b": (), "c": ()}
    rank = compose(*(recorder(name, seen=seen, after=afters[name]) for name in chosen))
    assert rank.hooks.planned is not None
    rank.hooks.planned(Round(1))
    assert seen == ["b", "c", "a"]


def test_order_and_fingerprint_survive_install_order_and_hash_seed(site: Site) -> None:
    """Two install orders under two hash seeds give the same order and the same fingerprint."""
    folders = []
    for number, installed in enumerate((("moss", "aster", "fern"), ("fern", "moss", "aster"))):
        folder = site.folder / f"site{number}"
        folder.mkdir()
        folders.append(folder)
        for name in installed:
            Site(folder).install(name)
    outputs = {
        subprocess.run(
            [sys.executable, "-c", ONE_PROCESS, str(folder)],
            env={"PYTHONHASHSEED": str(seed)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed, folder in enumerate(folders, 1)
    }
    assert len(outputs) == 1
    assert outputs.pop().startswith("['aster', 'batch_log', 'fern', 'finish_line', 'moss']")
