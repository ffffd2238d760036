# SPDX-License-Identifier: MIT
"""A running server, as the operators' commands reach it: its HTTP endpoints under `/engine`."""

from __future__ import annotations

import argparse
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from http.client import HTTPException
from typing import Any

from attrs import frozen

from tokenspeed_core.errors import ConfigError, EngineError

DEFAULT_URL = "http://127.0.0.1:8000"
KEY_VARIABLE = "TOKENSPEED_KEY"
MOST_SHOWN = 500


def add_server_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say which server, and how its answer is printed."""
    group = parser.add_argument_group("server")
    group.add_argument("--url", default=DEFAULT_URL, help=f"where it is ({DEFAULT_URL})")
    group.add_argument("--key", help=f"its key; without it, that of {KEY_VARIABLE}")
    group.add_argument("--json", action="store_true", help="print the answer as JSON")


@frozen
class EngineReply:
    """What one engine answered."""

    success: bool
    message: str
    values: Mapping[str, Any]


@frozen
class RunningServer:
    """A server's URL, and the key it wants if any."""

    url: str
    key: str | None = None

    @classmethod
    def of(cls, given: argparse.Namespace) -> RunningServer:
        """The server that the flags of `add_server_flags` name; ConfigError if it is no URL."""
        parts = urllib.parse.urlsplit(given.url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ConfigError([f"--url: expected a URL such as {DEFAULT_URL}, got {given.url!r}"])
        return cls(given.url.rstrip("/"), given.key or os.environ.get(KEY_VARIABLE))

    def ask(self, path: str, body: Mapping[str, object] | None = None) -> Sequence[EngineReply]:
        """Send one request, a POST where there is a body; each engine's answer, in their order.

        EngineError says what kept them from answering.
        """
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers)
        try:
            with urllib.request.urlopen(request) as response:  # waits as long as a drain may take
                return self._replies(path, response.read())
        except urllib.error.HTTPError as error:
            return self._refused(path, error)
        except urllib.error.URLError as error:
            reason = getattr(error.reason, "strerror", None) or error.reason
            raise EngineError(
                f"no server answers at {self.url} ({reason}); is it running there? --url names "
                "another"
            ) from error
        except (OSError, HTTPException) as error:
            text = f"{self.url} broke off: {type(error).__name__}: {error}"
            raise EngineError(f"{text}; did the server end?") from error

    def _refused(self, path: str, error: urllib.error.HTTPError) -> Sequence[EngineReply]:
        """An answer with a status of its own may still be the engines'."""
        if error.code == HTTPStatus.UNAUTHORIZED:
            raise EngineError(
                f"{self.url} wants a key, or another one; give it by --key or {KEY_VARIABLE}"
            ) from error
        content = error.read()
        try:
            return self._replies(path, content)
        except EngineError:
            said = _error_message(content) or error.reason
            raise EngineError(f"{self.url}{path}: {said} ({error.code})") from error

    def _replies(self, path: str, content: bytes) -> Sequence[EngineReply]:
        document = _json(content)
        replies = document.get("replies") if isinstance(document, dict) else None
        if not isinstance(replies, list) or not all(isinstance(each, dict) for each in replies):
            shown = content[:MOST_SHOWN].decode(errors="replace")
            raise EngineError(
                f'{self.url}{path}: expected {{"replies": [...]}}, got {shown!r}; is this a '
                "tokenspeed server?"
            )
        return [
            EngineReply(
                success=bool(each.get("success")),
                message=str(each.get("message") or ""),
                values=each.get("values") or {},
            )
            for each in replies
        ]


def _error_message(content: bytes) -> str | None:
    """The text of an error body in the manner of OpenAI's."""
    document = _json(content)
    error = document.get("error") if isinstance(document, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else None


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None
