# SPDX-License-Identifier: MIT
"""What does not change while an engine runs, as the labels of series that are always 1."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from tokenspeed_hookspecs import Engine
from tokenspeed_metrics.catalogue import Catalogue


def record_facts(catalogue: Catalogue, engine: Engine) -> None:
    """Say which build runs on what, and how the cache is laid out."""
    model, plane = engine.model, engine.data_plane
    build = {"version": _version("tokenspeed-core"), "data_plane": plane.kind, "dtype": model.dtype}
    catalogue.gauge("build_info", "What runs; always 1.", labels=build).set(1)
    groups = plane.cache_groups
    cache = {
        "page_size": ",".join(str(group.page_size) for group in groups),
        "groups": ",".join(group.name for group in groups),
        "num_pages": str(engine.scheduler.sizes.total_pages),
    }
    catalogue.gauge("cache_config_info", "The cache's layout; always 1.", labels=cache).set(1)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "unknown"
