# SPDX-License-Identifier: MIT
"""`/metrics`: the series of every engine on one page, if a plugin of theirs records any.

Engines are other processes. Each answers the control operation `metrics` with its series as plain
values; here those of one name are put together and written in the format that is asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attrs import define, frozen
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.openmetrics import exposition as open_metrics
from starlette.requests import Request
from starlette.responses import Response

from tokenspeed_hookspecs import ControlReply, ControlRequest
from tokenspeed_openai.deployment import Deployment
from tokenspeed_openai.errors import ApiError
from tokenspeed_openai.streams import until_gone

OPERATION = "metrics"
TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text"
PATIENCE_S = 10.0  # an engine that loads weights answers afterwards


@define(eq=False)
class Collected:
    """What the engines replied, as one collector; with several, each sample names its engine."""

    replies: Sequence[ControlReply]

    def collect(self) -> Iterator[Metric]:
        """One metric a name, over all engines."""
        metrics: dict[str, Metric] = {}
        for index, reply in enumerate(self.replies):
            own = {"engine": str(index)} if len(self.replies) > 1 else {}
            families: Any = reply.values["families"]
            for family in families:
                name = family["name"]
                found = metrics.setdefault(name, Metric(name, family["meaning"], family["kind"]))
                for ending, labels, value in family["samples"]:
                    found.add_sample(name + ending, {**labels, **own}, value)
        yield from metrics.values()


@frozen
class MetricsApi:
    """The endpoint of scrapers."""

    deployment: Deployment

    async def page(self, request: Request) -> Response:
        """The page; OpenMetrics for whoever accepts it."""
        asked = self.deployment.client.control(ControlRequest(OPERATION), timeout_s=PATIENCE_S)
        try:
            replies = await until_gone(request.receive, asked)
        except TimeoutError as error:
            raise ApiError(503, "The engines are busy and did not answer in time") from error
        for reply in replies:
            if not reply.success:
                text = f"No metrics ({reply.message}); the plugin `metrics` records them"
                raise ApiError(404, text)
        registry = CollectorRegistry(auto_describe=False)
        registry.register(Collected(replies))
        return _written(registry, request.headers.get("accept", ""))


def _written(registry: CollectorRegistry, accept: str) -> Response:
    """The library's own choice of an encoder would change the colons of the names."""
    if OPEN_METRICS not in accept:
        return Response(generate_latest(registry), media_type=TEXT)
    page: bytes = open_metrics.generate_latest(registry, escaping=open_metrics.ALLOWUTF8)
    return Response(page, media_type=f"{OPEN_METRICS}; version=1.0.0; charset=utf-8")
