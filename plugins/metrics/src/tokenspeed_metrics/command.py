# SPDX-License-Identifier: MIT
"""`tokenspeed metrics`: what a server's `/metrics` says, as a table."""

from __future__ import annotations

import argparse
import sys
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.table import Table

from tokenspeed_metrics.exposition import PREFIX

PAGE = "/metrics"
DEFAULT_URL = f"http://127.0.0.1:8000{PAGE}"
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
    parser.add_argument(
        "--url", default=DEFAULT_URL, help=f"a server, or the page to read ({DEFAULT_URL})"
    )
    parser.add_argument("--all", action="store_true", help="also what is still 0")
    parser.add_argument("names", nargs="*", metavar="TEXT", help="only names that hold a text")
    given = parser.parse_args(arguments)
    url = given.url if urlsplit(given.url).path.strip("/") else given.url.rstrip("/") + PAGE
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
            found = list(rows_of(text_string_to_metric_families(response.read().decode())))
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        sys.stderr.write(f"tokenspeed: no metrics at {url}: {reason}; --url names a page\n")
        return 1
    wanted = (row for row in found if given.all or row.value)
    rows = [row for row in wanted if _is_wanted(row.name, given.names)]
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
