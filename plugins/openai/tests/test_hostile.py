# SPDX-License-Identifier: MIT
"""Whatever a client sends, the server answers without a 5xx and serves the next one."""

from __future__ import annotations

import copy
import json
import random
import socket
from typing import Any
from urllib.parse import urlsplit

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok

SEEDS: dict[str, dict[str, Any]] = {
    "/v1/completions": {
        "model": "scripted",
        "prompt": ["hi", [1, 2]],
        "max_tokens": 2,
        "n": 2,
        "stop": ["a", "b"],
        "logprobs": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
        "logit_bias": {"5": 1.5},
        "seed": 3,
        "echo": True,
    },
    "/v1/chat/completions": {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}],
            },
        ],
        "max_completion_tokens": 2,
        "logprobs": True,
        "top_logprobs": 1,
        "response_format": {"type": "text"},
        "chat_template_kwargs": {"x": [1]},
    },
    "/tokenize": {"prompt": "hi", "return_token_strs": True},
    "/detokenize": {"tokens": [1, 2, 2047]},
    "/engine/pause": {"mode": "wait"},
}
VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**31,
    2**63,
    1e308,
    "",
    "\0",
    "é" * 50,
    [],
    {},
    [[]],
    {"a": [None]},
)


def _mutated(body: dict[str, Any], dice: random.Random) -> bytes:
    """A body with a value changed, a field more or less, or bytes broken."""
    changed = json.loads(json.dumps(body))
    for _ in range(dice.randint(1, 3)):
        place: Any = changed
        key: Any = dice.choice([*place, "other"])
        while dice.random() < 0.6 and isinstance(place, dict | list) and _inner(place, key):
            place = place[key]
            key = dice.choice([*place] if isinstance(place, dict) else range(len(place)))
        place[key] = copy.deepcopy(dice.choice(VALUES))
    content = bytearray(json.dumps(changed).encode())
    if dice.random() < 0.4:
        for _ in range(dice.randint(1, 4)):
            content[dice.randrange(len(content))] = dice.randrange(256)
    if dice.random() < 0.1:
        del content[dice.randrange(len(content)) :]
    return bytes(content)


def _inner(place: Any, key: Any) -> bool:
    """Whether one can go deeper there."""
    holds = key in place if isinstance(place, dict) else isinstance(key, int)
    return bool(holds and isinstance(place[key], dict | list) and place[key])


def _healthy(site: Any) -> bool:
    answer = site.post("/v1/completions", {"prompt": "hi", "max_tokens": 2})
    return bool(answer.json()["choices"][0]["text"] == " 1000 1001")


def test_mutated_bodies_kill_nothing(start: Any) -> None:
    """A thousand mutated bodies get no 5xx, and a healthy request still runs."""
    site, dice = start(admin_key="key", plane={"forward_ms": 0.0}), random.Random(7)
    statuses = set()
    with site.http() as http:
        for number in range(1000):
            path = dice.choice([*SEEDS])
            content = _mutated(SEEDS[path], dice)
            answer = http.post(path, content=content, headers={"Authorization": "Bearer key"})
            assert answer.status_code < 500, (number, path, content, answer.text)
            statuses.add(answer.status_code)
            if path == "/engine/pause":
                site.post("/engine/resume", {}, "key")
    assert {200, 400, 404} <= statuses
    assert _healthy(site)


@pytest.fixture
def operations(start: Any) -> tuple[Any, dict[str, Any]]:
    """A server with a short context, and the operations of its OpenAPI document by path."""
    site = start(admin_key="key", plane={"forward_ms": 0.0, "max_model_len": 64})
    schema = schemathesis.openapi.from_url(f"{site.url}/openapi.json")
    found = [each.ok() for each in schema.get_all_operations() if isinstance(each, Ok)]
    return site, {operation.path: operation for operation in found}


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize("path", [*SEEDS, "/engine/profile", "/engine/release_memory"])
def test_the_document_holds(operations: Any, path: str, mode: GenerationMode) -> None:
    """Requests made from the OpenAPI document, right ones and wrong ones, get no 5xx."""
    site, described = operations
    _check_operation(described[path], site, mode=mode)
    assert _healthy(site)


def test_the_rest_of_the_document_holds(operations: Any) -> None:
    """What takes no body, and the operations of others, get no 5xx either."""
    site, described = operations
    for path, operation in described.items():
        if operation.method == "get" or "{" in path:
            _check_operation(operation, site, mode=GenerationMode.POSITIVE)
    assert len(described) > 15


def _check_operation(operation: Any, site: Any, *, mode: GenerationMode) -> None:
    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=12,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=[*HealthCheck],
    )
    def holds(case: Any) -> None:
        case.call_and_validate(headers={"Authorization": "Bearer key"}, checks=[not_a_server_error])
        if operation.path.startswith("/engine"):
            site.post("/engine/resume_memory", {}, "key")
            site.post("/engine/resume", {}, "key")

    holds()


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
        b"GET\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n{",
        b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_junk_on_the_socket(site: Any, sent: bytes) -> None:
    """What is no request closes its connection and nothing else."""
    address = urlsplit(site.url)
    with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
        connection.sendall(sent)
    assert _healthy(site)


def test_a_body_that_stops_half_way(site: Any) -> None:
    """A client that leaves while it sends takes nobody along."""
    address = urlsplit(site.url)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
    with socket.create_connection((address.hostname, address.port)) as connection:
        connection.sendall(head)
    assert _healthy(site)
