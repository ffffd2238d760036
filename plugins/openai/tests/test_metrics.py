# SPDX-License-Identifier: MIT
"""`/metrics`: what engines' plugins record, on one page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenspeed_hookspecs import ControlOperation, ControlReply, Plugin, hookimpl
from tokenspeed_openai.metrics import Collected, _written

FAMILY = {
    "name": "tokenspeed:num_requests",
    "kind": "counter",
    "meaning": "Requests.",
    "samples": [["_total", {"engine": "0"}, 17.0]],
}
REPLY = ControlReply("metrics", True, values={"families": [FAMILY]})


class Recording(Plugin):
    """Answers for its engine as a plugin that records does."""

    name = "recording"

    @hookimpl
    def control_operations(self) -> Sequence[ControlOperation]:
        return [ControlOperation("metrics", lambda arguments: REPLY)]


def test_the_engines_series_are_a_page(start: Any) -> None:
    """What a plugin answers stands there as a scraper wants it."""
    answer = start(plugins=[Recording]).get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert 'tokenspeed:num_requests_total{engine="0"} 17.0' in answer.text.splitlines()


def test_without_a_plugin_there_is_no_page(start: Any) -> None:
    """The answer says what is missing."""
    answer = start().get("/metrics")
    assert answer.status_code == 404
    assert "plugin `metrics`" in answer.json()["error"]["message"]


def test_several_engines_share_the_families_and_not_the_samples() -> None:
    """A family is told once, and each sample names its engine."""
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collected([REPLY, REPLY]))
    for accept in ("", "application/openmetrics-text; version=1.0.0"):
        lines = bytes(_written(registry, accept).body).decode().splitlines()
        samples = [line for line in lines if not line.startswith("#")]
        assert samples == [
            'tokenspeed:num_requests_total{engine="0"} 17.0',
            'tokenspeed:num_requests_total{engine="1"} 17.0',
        ]
        assert len([line for line in lines if line.startswith("# TYPE")]) == 1
