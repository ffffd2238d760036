# SPDX-License-Identifier: MIT
"""`GET /metrics` on a port of its own, answered on threads of its own."""

from __future__ import annotations

import threading
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server


class HttpExporter:
    """Serves a registry; OpenMetrics to whoever asks for it."""

    def __init__(self, registry: CollectorRegistry, *, host: str, port: int) -> None:
        self._registry = registry
        self._host, self._port = host, port
        self._server: WSGIServer | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://{self._host}:{self._port}/metrics"

    def start(self) -> None:
        """Bind the port; an OSError names one that cannot be bound."""
        try:
            self._server, self._thread = start_http_server(
                self._port, self._host, registry=self._registry
            )
        except OSError as cause:
            raise OSError(
                f"metrics cannot be served at {self._host}:{self._port}: {cause.strerror}; is "
                "another engine there? metrics.port names another port"
            ) from cause

    def stop(self) -> None:
        """Close the port; a scrape that is being answered is finished."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join()
            self._server = None
