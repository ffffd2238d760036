# SPDX-License-Identifier: MIT
"""What a client is told when its request cannot be served."""

from __future__ import annotations

import msgspec

INVALID = "invalid_request_error"


class ErrorDetail(msgspec.Struct):
    """OpenAI's error; `param` is the field at fault."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(msgspec.Struct):
    """The body of every answer that is no success."""

    error: ErrorDetail


class ApiError(Exception):
    """Ends a request with an HTTP status and an OpenAI error body."""

    def __init__(
        self, status: int, message: str, *, param: str | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.detail = ErrorDetail(message, _type_of(status), param, code)

    def body(self) -> bytes:
        """The JSON body."""
        return msgspec.json.encode(ErrorBody(self.detail))


def invalid(message: str, param: str | None = None) -> ApiError:
    """A 400 that names the field at fault."""
    return ApiError(400, message, param=param)


def unavailable(reason: object) -> ApiError:
    """A 503: the engine takes no requests."""
    return ApiError(503, f"The engine is not available: {reason}", code="engine_unavailable")


def _type_of(status: int) -> str:
    if status >= 500:
        return "server_error"
    return {401: "authentication_error", 403: "permission_error"}.get(status, INVALID)
