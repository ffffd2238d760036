# SPDX-License-Identifier: MIT
"""Series by themselves: what they count, and what they refuse."""

from __future__ import annotations

import logging
import re
import threading
from collections import deque
from typing import Any

import pytest

from tokenspeed_metrics.buckets import lengths_up_to
from tokenspeed_metrics.catalogue import Buckets, Catalogue
from tokenspeed_metrics.series import Histogram

LOG = logging.getLogger("tokenspeed.metrics.test")


@pytest.fixture
def catalogue() -> Catalogue:
    """An empty one."""
    return Catalogue(LOG)


def test_a_value_is_in_the_bucket_of_its_bound() -> None:
    """A bound belongs to the bucket below it, as scrapers take it; the last has no bound."""
    histogram = Histogram(lambda value: None, (1, 2, 5))
    for value in (0, 1, 1.5, 2, 5, 6):
        histogram.observe(value)
    histogram.observe(3, 10)
    assert histogram.up_to((1, 2, 5)) == [2, 4, 15, 16]
    assert histogram.total == 45.5


def test_a_coarser_view_counts_the_same_values() -> None:
    """One set of counts is told in any buckets whose bounds are among its own."""
    histogram = Histogram(lambda value: None, (1, 2, 5, 10))
    for value in (1, 3, 7, 20):
        histogram.observe(value)
    assert histogram.up_to((2, 10)) == [1, 3, 4]


def test_the_same_name_and_labels_are_the_same_series(catalogue: Catalogue) -> None:
    """Whoever asks again adds to the same number; other labels are another one."""
    catalogue.counter("a", "A.", labels={"kind": "x"}).add(2)
    catalogue.counter("a", "A.", labels={"kind": "x"}).add(3)
    assert catalogue.counter("a", "A.", labels={"kind": "x"}).value == 5
    assert catalogue.counter("a", "A.", labels={"kind": "y"}).value == 0


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda c: c.gauge("a", ""), "cannot be"),
        (lambda c: c.counter("a", "", labels={"x": "1"}), "cannot be"),
        (lambda c: c.counter("b_total", ""), "leave out `_total`"),
        (lambda c: c.counter("B", ""), "expected lower-case words"),
        (lambda c: c.gauge("b", "", labels={"le": "1"}), "none of engine, le, model_name"),
        (lambda c: c.gauge("b", "", labels={"cluster": "1"}), "'cluster' is on every series"),
        (lambda c: c.histogram("b", "", buckets=(2, 1)), "expected ascending buckets"),
        (lambda c: c.histogram("b", "", buckets=()), "expected ascending buckets"),
    ],
)
def test_what_cannot_be_a_series_is_refused_when_it_is_made(make: Any, text: str) -> None:
    """So it ends the start of an engine, and no round."""
    catalogue = Catalogue(LOG, common=("cluster",))
    catalogue.counter("a", "A.")
    with pytest.raises(ValueError, match=re.escape(text)):
        make(catalogue)


@pytest.mark.parametrize("value", [None, "3", -1, float("nan")])
def test_a_value_that_is_no_amount_is_left_out(
    catalogue: Catalogue, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is raised; the first is told, and all are counted."""
    counter = catalogue.counter("a", "A.")
    counter.add(value)
    counter.add(value)
    counter.add()
    rejected = catalogue.counter("rejected_values", "", labels={"series": "a"})
    assert (counter.value, rejected.value) == (1, 2)
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("value", [None, "3", float("nan")])
def test_no_number_is_observed_or_set(catalogue: Catalogue, value: Any) -> None:
    """Histograms and gauges leave it out, and what came with it in; a gauge may be no number."""
    histogram = catalogue.histogram("h", "H.", buckets=(1,))
    for each in (0.5, value, 2):
        histogram.observe(each)
    assert (histogram.total, histogram.counts) == (2.5, [1, 1])
    assert catalogue.counter("rejected_values", "", labels={"series": "h"}).value == 1
    if value != value:
        return
    gauge = catalogue.gauge("g", "G.")
    gauge.set(value)
    assert gauge.value == 0


def test_what_waits_is_settled_once(catalogue: Catalogue) -> None:
    """While one thread writes and looks now and then, two others read all the time."""
    waiting: deque[int] = deque()
    histogram = catalogue.histogram("h", "H.", buckets=(1, 2))

    def settle() -> None:
        for _ in range(len(waiting)):
            histogram.observe(waiting.popleft())

    catalogue.before_reading(settle)
    is_over = threading.Event()

    def read() -> None:
        while not is_over.is_set():
            catalogue.settle()

    readers = [threading.Thread(target=read) for _ in range(2)]
    for each in readers:
        each.start()
    for number in range(30_000):
        waiting.append(number % 3)
        if number % 1000 == 0:
            catalogue.settle_if_free()
    is_over.set()
    for each in readers:
        each.join()
    catalogue.settle()
    assert histogram.counts == [20_000, 10_000, 0]
    assert histogram.total == 30_000


def test_the_loop_waits_for_no_reader(catalogue: Catalogue) -> None:
    """It looks while a reader settles, and goes on."""
    looks: list[str] = []

    def settle() -> None:
        looks.append("begins")
        loop = threading.Thread(target=catalogue.settle_if_free)
        loop.start()
        loop.join(60)
        looks.append("waits" if loop.is_alive() else "goes on")

    catalogue.before_reading(settle)
    catalogue.settle()
    assert looks == ["begins", "goes on"]


def test_buckets_are_replaced_by_name() -> None:
    """Those of the configuration count, whatever the plugin asks for."""
    catalogue = Catalogue(LOG, Buckets(instead={"h": [3, 4]}, beside={"h": (1,)}))
    assert catalogue.histogram("h", "H.", buckets=(9,)).bounds == (1, 3, 4)
    family = catalogue.get("h")
    assert family is not None
    assert family.form.bounds == (3, 4)


@pytest.mark.parametrize(
    ("longest", "bounds"), [(1, (1,)), (20, (1, 2, 5, 10, 20)), (21, (1, 2, 5, 10, 20, 50))]
)
def test_lengths_go_in_steps_up_to_the_longest(longest: int, bounds: tuple[int, ...]) -> None:
    """1, 2, 5 and so on; the last one holds every request."""
    assert lengths_up_to(longest) == bounds
