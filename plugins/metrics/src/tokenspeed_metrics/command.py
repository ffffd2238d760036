# SPDX-License-Identifier: MIT
"""`tokenspeed metrics`: what a server's `/metrics` says, as a table."""

from __future__ import annotations

import argparse
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from tokenspeed_metrics.exposition import PREFIX

DEFAULT_URL = "http://127.0.0.1:8000/metrics"
TIMEOUT_S = 10.0
COMMON = ("model_name", "engine")


class Row(NamedTuple):
    """A series: its value, or how often a histogram was observed and what it saw."""

    name: str
    labels: Mapping[str, str]
    value: float
    mean: str = ""
    median: str = ""
    tail: str = ""


def run(arguments: list[str]) -> int:
    """Print the table; 1 where no server answers."""
    parser = argparse.ArgumentParser("tokenspeed metrics", description=__doc__)
    parser.add_argument("--url", default=DEFAULT_URL, help=f"the page to read ({DEFAULT_URL})")
    parser.add_argument("--all", action="store_true", help="also what is still 0")
    parser.add_argument("names", nargs="*", metavar="TEXT", help="only names that hold a text")
    given = parser.parse_args(arguments)
    try:
        with urllib.request.urlopen(given.url, timeout=TIMEOUT_S) as response:
            text = response.read().decode()
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        sys.stderr.write(f"tokenspeed: no metrics at {given.url}: {reason}; --url names a page\n")
        return 1
    rows = [
        row
        for row in rows_of(text_string_to_metric_families(text))
        if (given.all or row.value) and _is_wanted(row.name, given.names)
    ]
    Console().print(table(rows))
    return 0


def table(rows: Sequence[Row]) -> Table:
    """The rows as a table for a terminal, without the labels that are the same in all of them."""
    values: dict[str, set[str]] = {}
    for row in rows:
        for key, text in row.labels.items():
            values.setdefault(key, set()).add(text)
    same = [key for key in COMMON if len(values.get(key, ())) < 2]
    shown = Table(box=None, pad_edge=False)
    shown.add_column("series", overflow="fold")
    for title in ("value", "mean", "half ≤", "99 % ≤"):
        shown.add_column(title, justify="right", no_wrap=True)
    for row in rows:
        labels = ", ".join(f"{key}={text}" for key, text in row.labels.items() if key not in same)
        name = row.name.removeprefix(PREFIX)
        series = f"{name} ({labels})" if labels else name
        shown.add_row(series, f"{row.value:.5g}", row.mean, row.median, row.tail)
    return shown


def rows_of(metrics: Iterable[Metric]) -> Iterator[Row]:
    """A row a series."""
    for metric in metrics:
        groups: dict[tuple[tuple[str, str], ...], dict[str, float]] = {}
        for sample in metric.samples:
            own = [(key, text) for key, text in sample.labels.items() if key != "le"]
            group = groups.setdefault(tuple(own), {})
            group[sample.labels.get("le", sample.name.removeprefix(metric.name))] = sample.value
        for pairs, values in groups.items():
            yield _row(metric, dict(pairs), values=values)


def _row(metric: Metric, labels: Mapping[str, str], *, values: Mapping[str, float]) -> Row:
    if metric.type != "histogram":
        return Row(metric.name, labels, next(iter(values.values())))
    count = values.get("_count", 0)
    if not count:
        return Row(metric.name, labels, 0)
    bounds = sorted((float(le), seen) for le, seen in values.items() if not le.startswith("_"))
    median, tail = (f"{_at(bounds, share * count):g}" for share in (0.5, 0.99))
    return Row(metric.name, labels, count, f"{values['_sum'] / count:.3g}", median, tail)


def _at(bounds: list[tuple[float, float]], rank: float) -> float:
    """The smallest bound that so many values are not above."""
    return next(bound for bound, seen in bounds if seen >= rank)


def _is_wanted(name: str, texts: list[str]) -> bool:
    return not texts or any(text in name for text in texts)
