# SPDX-License-Identifier: MIT
"""Configuration: one record, one TOML file, the same names as flags."""

from __future__ import annotations

import argparse
import tomllib
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import attrs
import pytest
from attrs import field, frozen
from hypothesis import given
from hypothesis import strategies as st

from tokenspeed_core.composition.resolve import with_defaults
from tokenspeed_core.config import (
    EngineConfig,
    EngineSection,
    SchedulerSection,
    add_flags,
    add_table_flags,
    from_flags,
    from_tables,
    load,
    reject_unknown,
)
from tokenspeed_core.config.tables import from_table, to_table
from tokenspeed_core.errors import ConfigError

NAMES = st.lists(st.from_regex(r"[a-z]{1,9}", fullmatch=True), max_size=3).map(tuple)
POSITIVE = st.integers(1, 2**62)
ENGINES = st.builds(
    EngineSection,
    model=st.text(),
    data_plane=st.text(),
    scheduler=st.text(),
    dtype=st.sampled_from(["auto", "float32", "bfloat16"]),
    device=st.text(),
    threads=st.none() | POSITIVE,
    depth=st.integers(0, 1),
    stream_interval=POSITIVE,
    max_model_len=st.none() | POSITIVE,
)
SCHEDULERS = st.builds(
    SchedulerSection,
    page_size=POSITIVE,
    num_pages=st.integers(2, 2**62),
    max_batch_size=POSITIVE,
    mixed_batches=st.booleans(),
    prefix_cache=st.booleans(),
)
VALUES = st.recursive(
    st.text() | st.booleans() | st.integers(-(2**62), 2**62) | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
TABLES = st.dictionaries(st.text(), VALUES, max_size=3)
PLUGIN_TABLES = st.dictionaries(st.from_regex(r"plugin_[a-z]{1,9}", fullmatch=True), TABLES)


class Level(Enum):
    """Choices as an enum."""

    LOW = "low"
    HIGH = "high"


@frozen
class Nested:
    """One field of every supported type."""

    port: int
    share: float = 0.5
    name: str = "x"
    is_on: bool = True
    path: Path | None = None
    level: Level = Level.LOW
    kind: Literal["a", "b"] = "a"
    names: tuple[str, ...] = ()
    sizes: list[int] = field(factory=list)
    weights: dict[str, float] = field(factory=dict)
    mode: str = field(
        default="slow", metadata={"help": "how 100% fast", "choices": ("slow", "fast")}
    )


def parsed(*arguments: str, base: EngineConfig | None = None) -> EngineConfig:
    """The configuration that a command line gives."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser)
    add_table_flags(parser, Nested, table="nested", prefix="nested_")
    return from_flags(parser.parse_args(list(arguments)), base)


def problems(given_tables: dict[str, Any]) -> list[str]:
    """What is wrong with these tables."""
    with pytest.raises(ConfigError) as caught:
        from_tables(given_tables)
    return caught.value.problems


@given(
    st.builds(
        EngineConfig,
        engine=ENGINES,
        scheduler=SCHEDULERS,
        data_plane=TABLES,
        plugins=st.just("auto") | NAMES,
        optional=NAMES,
        without=NAMES,
        tables=PLUGIN_TABLES,
    )
)
def test_what_is_written_reads_back_the_same(config: EngineConfig) -> None:
    """Any configuration, written as TOML and read again, is the same configuration."""
    assert from_tables(tomllib.loads(config.to_toml())) == config


def test_the_whole_configuration_can_be_fed_back() -> None:
    """With every plugin's defaults written out, it still loads, and composes the same."""
    whole = with_defaults(EngineConfig(tables={"batch_log": {"interval": 3}}))
    assert whole.tables["batch_log"] == {"enabled": True, "interval": 3, "draft_steps": 0}
    again = from_tables(tomllib.loads(whole.to_toml()))
    assert with_defaults(again) == whole


def test_a_file_is_loaded(tmp_path: Path) -> None:
    """`load` reads what `to_toml` wrote."""
    config = EngineConfig(engine=EngineSection(depth=0), tables={"rates": {"limit": 3}})
    path = tmp_path / "engine.toml"
    path.write_text(config.to_toml(), encoding="utf-8")
    assert load(path) == config


@pytest.mark.parametrize(
    ("content", "text"),
    [(None, "cannot read"), (b"x = ", "is not TOML"), (b"\xff = 1", "is not TOML")],
)
def test_an_unreadable_file_is_named(tmp_path: Path, content: bytes | None, text: str) -> None:
    """A file that is missing or no TOML is one error with its path."""
    path = tmp_path / "engine.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=text) as caught:
        load(path)
    assert str(path) in str(caught.value)


def test_every_problem_of_a_file_is_in_one_report() -> None:
    """Unknown keys, wrong types, wrong choices and limits, each with option, value and choices."""
    found = problems(
        {
            "engine": {"modle": "x", "dtype": "int8", "stream_interval": 0},
            "scheduler": {"page_size": "64", "prefix_cache": 1},
            "plugins": "all",
            "rates": 3,
        }
    )
    assert [problem.partition(" (there are")[0] for problem in found] == [
        "engine: unknown option 'modle'; did you mean 'model'?",
        "engine.dtype: expected one of 'auto', 'float32', 'bfloat16', got 'int8' (a text)",
        "engine.stream_interval: expected at least 1, got 0",
        "scheduler.page_size: expected a whole number, got '64' (a text)",
        "scheduler.prefix_cache: expected true or false, got 1 (a whole number)",
        "plugins: expected one of 'auto' or a list (a text each), got 'all' (a text)",
        "rates: expected a table of options, got 3 (a whole number)",
    ]


def test_a_record_made_in_python_is_checked() -> None:
    """Limits hold for a section that no file was read for."""
    with pytest.raises(ConfigError, match="page_size: expected at least 1, got 0"):
        SchedulerSection(page_size=0)


def test_flags_have_the_names_of_the_keys() -> None:
    """Every key of the engine's tables is a flag."""
    config = parsed(
        "--max-batch-size", "7", "--no-mixed-batches", "--depth", "0", "--plugins", "a,b"
    )
    assert config.scheduler == SchedulerSection(max_batch_size=7, mixed_batches=False)
    assert config.engine == EngineSection(depth=0)
    assert config.plugins == ("a", "b")
    assert parsed("--plugins", "auto").plugins == "auto"


def test_flags_go_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    """A flag wins over the file, which wins over the default."""
    path = tmp_path / "engine.toml"
    path.write_text("[scheduler]\npage_size = 32\nmax_batch_size = 3\n")
    config = parsed("--config", str(path), "--page-size", "16")
    assert config.scheduler == SchedulerSection(page_size=16, max_batch_size=3)


def test_a_wrong_flag_value_is_reported_like_a_wrong_key() -> None:
    """The text is not converted, and all wrong flags are in one report."""
    with pytest.raises(ConfigError) as caught:
        parsed("--depth", "x", "--page-size", "1.5")
    assert caught.value.problems == [
        "engine.depth: expected a whole number, got 'x' (a text)",
        "scheduler.page_size: expected a whole number, got '1.5' (a text)",
    ]


def test_an_unknown_flag_is_reported_with_the_nearest() -> None:
    """Every argument nobody took is named."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add_flags(parser)
    with pytest.raises(ConfigError, match=r"'--pagesize'; did you mean '--page-size'\?"):
        reject_unknown(parser, ["--pagesize=3"])
    with pytest.raises(ConfigError, match="unexpected argument 'more'"):
        reject_unknown(parser, ["more"])
    reject_unknown(parser, [])


def test_a_plugins_options_are_flags_in_its_table() -> None:
    """Each type of a plugin's options comes from its flag."""
    config = parsed(
        *("--nested-port", "9", "--nested-share", "2", "--no-nested-is-on", "--nested-path", "x/y"),
        *("--nested-level", "high", "--nested-names", "a,b", "--nested-sizes", "1,2"),
    )
    nested = from_table(Nested, config.tables["nested"], place="nested")
    assert nested == Nested(
        9, 2.0, "x", False, Path("x/y"), Level.HIGH, names=("a", "b"), sizes=[1, 2]
    )


def test_options_become_a_table_and_come_back() -> None:
    """A table of every supported type reads back as the same options."""
    options = Nested(1, path=Path("x"), weights={"a": 1.5}, level=Level.HIGH, sizes=[3])
    assert from_table(Nested, to_table(options), place="nested") == options


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ({}, "nested.port: is required"),
        ({"port": True}, "nested.port: expected a whole number, got True (true or false)"),
        ({"port": 1, "share": "much"}, "nested.share: expected a number, got 'much' (a text)"),
        (
            {"port": 1, "level": "mid"},
            "nested.level: expected one of 'low', 'high', got 'mid' (a text)",
        ),
        ({"port": 1, "kind": "c"}, "nested.kind: expected one of 'a', 'b', got 'c' (a text)"),
        ({"port": 1, "sizes": [1, "2"]}, "nested.sizes: expected a whole number, got '2' (a text)"),
        (
            {"port": 1, "names": "a"},
            "nested.names: expected a list (a text each), got 'a' (a text)",
        ),
        ({"port": 1, "weights": 3}, "nested.weights: expected a table, got 3 (a whole number)"),
        (
            {"port": 1, "mode": "no"},
            "nested.mode: expected one of 'slow', 'fast', got 'no' (a text)",
        ),
        (3, "nested: expected a table, got 3 (a whole number)"),
    ],
)
def test_a_wrong_option_says_what_was_expected(table: object, problem: str) -> None:
    """Each kind of mistake names the option, what was expected and what came."""
    with pytest.raises(ConfigError) as caught:
        from_table(Nested, table, place="nested")
    assert caught.value.problems == [problem]


def test_a_validator_of_the_options_class_is_heard() -> None:
    """What an attrs validator raises is a problem of the table."""

    @frozen
    class Even:
        size: int = field(default=2)

        @size.validator
        def _check(self, attribute: attrs.Attribute[int], value: int) -> None:
            if value % 2:
                raise ValueError("must be even")

    with pytest.raises(ConfigError, match="even: must be even"):
        from_table(Even, {"size": 3}, place="even")


def test_help_is_shown_for_every_flag() -> None:
    """Help texts with a percent sign print, choices are listed, a table has no flag."""
    parser = argparse.ArgumentParser()
    add_table_flags(parser, Nested, table="nested", prefix="nested_")
    text = parser.format_help()
    assert "how 100% fast (slow, fast; slow by itself)" in text
    assert "--nested-weights" not in text
