# SPDX-License-Identifier: MIT
"""`GET /metrics` on a port of its own, answered on threads of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CollectorRegistry

from tokenspeed_metrics.page import written

TIMEOUT_S = 10.0  # for a scraper that says nothing


class HttpExporter:
    """Serves a registry; OpenMetrics to whoever asks for it."""

    def __init__(self, registry: CollectorRegistry, *, host: str, port: int) -> None:
        self._registry = registry
        self._host, self._port = host, port
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Bind the port; an OSError names one that cannot be bound."""
        try:
            self._server = ThreadingHTTPServer((self._host, self._port), _handler(self._registry))
        except OSError as cause:
            raise OSError(
                f"metrics cannot be served at {self._host}:{self._port}: {cause.strerror}; is "
                "another engine there? metrics.port names another port"
            ) from cause
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="metrics", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Close the port."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()


def _handler(registry: CollectorRegistry) -> Callable[..., BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = TIMEOUT_S

        def do_GET(self) -> None:
            if self.path.partition("?")[0] not in ("/", "/metrics"):
                self.send_error(HTTPStatus.NOT_FOUND, "the page is /metrics")
                return
            text, content_type = written(registry, accept=self.headers.get("Accept", ""))
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *arguments: object) -> None:
            """A scrape is nothing to tell of."""

    return Handler
