# SPDX-License-Identifier: MIT
"""Options that hold tables of records: read, refused by place, and written back."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from attrs import field, frozen

from tokenspeed_core.config.tables import from_table, to_table
from tokenspeed_core.errors import ConfigError


@frozen
class Limit:
    """A record."""

    count: int = 1


@frozen
class Options:
    """One record, and records by name."""

    one: Limit = field(factory=Limit)
    named: Mapping[str, Limit] = field(factory=dict)


TABLE = {"one": {"count": 2}, "named": {"a": {"count": 3}}}


def test_records_come_from_tables_and_go_back() -> None:
    """A table becomes the record that its option is annotated with."""
    options = from_table(Options, TABLE, place="mine")
    assert options == Options(Limit(2), {"a": Limit(3)})
    assert to_table(options) == TABLE


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ({"named": {"a": {"count": "many"}}}, "mine.named: a: count: expected a whole number"),
        ({"one": {"cuont": 1}}, "mine.one: unknown option 'cuont'; did you mean 'count'"),
        ({"one": 3}, "mine.one: expected a table, got 3"),
    ],
)
def test_a_wrong_record_is_told_by_its_place(table: Mapping[str, object], told: str) -> None:
    """The message has the way to the wrong value."""
    with pytest.raises(ConfigError, match=told.replace(".", r"\.").replace("?", r"\?")):
        from_table(Options, table, place="mine")
