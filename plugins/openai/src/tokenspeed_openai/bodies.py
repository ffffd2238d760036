# SPDX-License-Identifier: MIT
"""From the bytes of a request to a checked struct, or to an error that names the field."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from tokenspeed_openai.errors import ApiError, invalid
from tokenspeed_openai.requests import field_names

S = TypeVar("S", bound=msgspec.Struct)
MISSING = re.compile(r"missing required field `([^`]*)`")


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body; a 413 as soon as it is known to be longer than `limit` bytes."""
    if int(request.headers.get("content-length") or 0) > limit:
        raise _too_large(limit)
    pieces, length = [], 0
    try:
        async for piece in request.stream():
            length += len(piece)
            if length > limit:
                raise _too_large(limit)
            pieces.append(piece)
    except ClientDisconnect as error:
        raise ApiError(400, "the connection was closed before the body had come") from error
    return b"".join(pieces)


def decode(
    body: bytes, wanted: type[S], *, features: Collection[str] = ()
) -> tuple[S, dict[str, object]]:
    """The body as a struct, and the fields that are features of a plugin, by name."""
    found = decode_object(body)
    extras = _extras(found, known=field_names(wanted), features=features)
    try:
        return msgspec.convert(found, wanted), extras
    except (msgspec.ValidationError, RecursionError) as error:
        raise _invalid_value(error) from error


def decode_object(body: bytes) -> dict[str, Any]:
    """The body as a JSON object; an empty one where there is no body."""
    try:
        found = msgspec.json.decode(body) if body else {}
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"The body is not valid JSON: {error}") from error
    if not isinstance(found, dict):
        raise invalid(f"The body must be a JSON object, got {type(found).__name__}")
    return found


def _extras(
    found: dict[str, Any], *, known: Collection[str], features: Collection[str]
) -> dict[str, object]:
    """Take the fields out that belong to a plugin; a name that nobody knows is refused."""
    extras = {}
    for name in [name for name in found if name not in known]:
        if name not in features:
            close = difflib.get_close_matches(name, [*known, *features], n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise invalid(
                f"Unknown field {name[:80]!r}: neither this server nor a plugin of the engine "
                f"understands it{hint}",
                param=name[:80],
            )
        extras[name] = found.pop(name)
    return extras


def _invalid_value(error: Exception) -> ApiError:
    """Say the field twice: in `param` for programs, in the text for people."""
    text, _, where = str(error).partition(" - at ")
    place = where.strip("`").removeprefix("$").removeprefix(".")
    if missing := MISSING.search(str(error)):
        place = f"{place}.{missing[1]}" if place else missing[1]
    message = f"Invalid value for {place}: {text}" if place else text
    return invalid(message, param=place or None)


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"The body is larger than {limit} bytes, which is what this server takes")
