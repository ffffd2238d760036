# SPDX-License-Identifier: MIT
"""The OpenAPI document, made of the table of endpoints and the structs they name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from tokenspeed_openai.endpoints import Endpoint
from tokenspeed_openai.errors import ErrorBody
from tokenspeed_openai.keys import Access

REFERENCE = "#/components/schemas/{name}"
PARAMETER = re.compile(r"{(\w+)(:\w+)?}")


def document(endpoints: Sequence[Endpoint], *, version: str) -> dict[str, Any]:
    """OpenAPI 3.1 for these endpoints."""
    structs = {
        each
        for endpoint in endpoints
        for each in (endpoint.body, endpoint.answer, endpoint.event, ErrorBody)
        if each is not None
    }
    ordered = sorted(structs, key=lambda struct: struct.__name__)
    _, schemas = msgspec.json.schema_components(ordered, ref_template=REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        path = PARAMETER.sub(r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "tokenspeed", "version": version},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    found: dict[str, Any] = {
        "summary": endpoint.summary,
        "operationId": _operation_id(endpoint),
        "responses": _responses(endpoint),
    }
    if endpoint.access is not Access.OPEN:
        found["security"] = [{"key": []}] if endpoint.access is Access.ADMIN else [{}, {"key": []}]
    if names := PARAMETER.findall(endpoint.path):
        found["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name, _ in names
        ]
    if endpoint.body is not None:
        found["requestBody"] = {
            "required": True,
            "content": {"application/json": _ref(endpoint.body)},
        }
    return found


def _responses(endpoint: Endpoint) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": {}}}
    if endpoint.answer is not None:
        content = {"application/json": _ref(endpoint.answer)}
    if endpoint.event is not None:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    found: dict[str, Any] = {"200": {"description": "OK", "content": content}}
    errors = {*endpoint.errors}
    if endpoint.access is not Access.OPEN:
        errors.add(HTTPStatus.UNAUTHORIZED)
    if endpoint.body is not None:
        errors |= {HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE}
    for status in sorted(errors):
        found[str(int(status))] = {
            "description": HTTPStatus(status).phrase,
            "content": {"application/json": _ref(ErrorBody)},
        }
    return found


def _ref(struct: type[msgspec.Struct]) -> dict[str, Any]:
    return {"schema": {"$ref": REFERENCE.format(name=struct.__name__)}}


def _operation_id(endpoint: Endpoint) -> str:
    return re.sub(r"\W+", "_", f"{endpoint.method.lower()}{endpoint.path}").strip("_")
