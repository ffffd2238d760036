# SPDX-License-Identifier: MIT
"""The page that scrapers read, on a port of its own, and the table for people."""

from __future__ import annotations

import json
import socket
import threading
import urllib.request
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families

from tokenspeed_core.errors import CompositionError
from tokenspeed_core.testing import EngineFixture
from tokenspeed_metrics.command import run

Make = Callable[..., EngineFixture]
OPEN = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
        return number


@pytest.fixture
def served(engine: Make, port: int) -> str:
    """The page of an engine that has answered two requests."""
    running = engine(port=port, aliases=["vllm", "sglang"])
    for name in "ab":
        running.add(name, 20, budget=3)
    running.to_idle()
    return f"http://127.0.0.1:{port}/metrics"


def parsed(text: str) -> list[Metric]:
    """The page's families."""
    return list(text_string_to_metric_families(text))


def read(url: str, accept: str = "") -> tuple[str, str]:
    """A page's text and its type."""
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode(), answer.headers["Content-Type"]


def test_the_page_is_read_by_a_parser(served: str) -> None:
    """Every family has one type and one meaning, and the counts are those of the traffic."""
    text, kind = read(served)
    found = {family.name: family for family in parsed(text)}
    assert kind.startswith("text/plain; version=0.0.4")
    assert found["tokenspeed:num_requests"].samples[0].value == 2
    assert found["tokenspeed:num_requests"].type == "counter"
    assert all(family.documentation for family in found.values())
    assert text.count("# TYPE ") == len(set(found))


def test_openmetrics_is_there_for_whoever_asks(served: str) -> None:
    """The strict parser of that format takes the page."""
    text, kind = read(served, OPEN)
    found = {family.name: family for family in open_metrics(text)}
    assert kind.startswith("application/openmetrics-text")
    assert found["tokenspeed:num_requests"].samples[0].value == 2


def test_a_port_in_use_ends_the_start(engine: Make, port: int) -> None:
    """The error names it, and how to name another."""
    engine(port=port)
    with pytest.raises(CompositionError, match=rf"127\.0\.0\.1:{port}.*metrics\.port"):
        engine(port=port)


def test_the_port_is_free_after_the_stop(engine: Make, port: int) -> None:
    """Another engine can have it at once."""
    engine(port=port).rank.stop()
    engine(port=port)


def test_scrapes_and_rounds_do_not_meet(engine: Make, port: int) -> None:
    """Pages read while rounds run, and while the engine stops, are whole pages or none."""
    running = engine(port=port)
    pages: list[str] = []
    is_over = threading.Event()

    def scrape() -> None:
        while not is_over.is_set():
            try:
                pages.append(read(f"http://127.0.0.1:{port}/metrics")[0])
            except OSError:
                return

    scraper = threading.Thread(target=scrape)
    scraper.start()
    for number in range(30):
        running.add(f"r{number}", 30, budget=10)
        running.rounds(10)
    running.rank.stop()
    is_over.set()
    scraper.join()
    assert pages
    assert all(parsed(page) for page in pages)


def test_the_table_shows_what_is_not_zero(served: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A line a series, under the name without the prefix; histograms with their middle."""
    assert run(["--url", served, "num_requests", "request_prompt_tokens"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["num_requests", "2"] in lines
    assert ["request_prompt_tokens", "2", "20", "20", "20"] in lines
    assert not any("refused" in line[0] for line in lines)


def test_a_server_is_as_good_as_its_page(served: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Other commands take a server's address; what is no metrics is told in a line."""
    assert run(["--url", served.removesuffix("/metrics"), "num_requests"]) == 0
    assert "num_requests" in capsys.readouterr().out
    assert run(["--url", "data:text/html,<!doctype html>"]) == 1
    assert capsys.readouterr().err.startswith("tokenspeed: no metrics at data:")


def test_a_server_that_is_not_there_is_told(port: int, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and an exit code."""
    assert run(["--url", f"http://127.0.0.1:{port}/metrics"]) == 1
    assert capsys.readouterr().err.startswith(f"tokenspeed: no metrics at http://127.0.0.1:{port}")


def test_the_dashboard_asks_for_series_that_exist(served: str) -> None:
    """Each expression of the dashboard in the package names series of the page."""
    text, _ = read(served)
    page: dict[str, Any] = json.loads(
        files("tokenspeed_metrics").joinpath("dashboard.json").read_text()
    )
    asked = {
        word
        for panel in page["panels"]
        for target in panel.get("targets", ())
        for word in target["expr"].replace("(", " ").replace("{", " ").replace("[", " ").split()
        if word.startswith("tokenspeed:")
    }
    names = {sample.name for f in parsed(text) for sample in f.samples}
    assert len(asked) > 15
    assert asked - names == set()
