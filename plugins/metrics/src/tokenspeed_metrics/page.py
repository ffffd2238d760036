# SPDX-License-Identifier: MIT
"""A registry as the text that a scraper accepts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition as open_metrics

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPEN_METRICS = "application/openmetrics-text"
OPEN_TEXT = f"{OPEN_METRICS}; version=1.0.0; charset=utf-8"


def written(registry: CollectorRegistry, *, accept: str) -> tuple[bytes, str]:
    """The page, and its type.

    The library's own choice of an encoder would write `_` for the colons of our names wherever a
    scraper names no escaping, in the samples and not in the lines above them.
    """
    if OPEN_METRICS not in accept:
        return generate_latest(registry), TEXT
    page: bytes = open_metrics.generate_latest(registry, escaping=open_metrics.ALLOWUTF8)
    return page, OPEN_TEXT
