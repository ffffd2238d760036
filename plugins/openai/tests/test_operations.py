# SPDX-License-Identifier: MIT
"""Control operations under `/engine/*`."""

from __future__ import annotations

import json
from typing import Any

import pytest

KEY = "key"


@pytest.fixture
def operated(start: Any) -> Any:
    """A server with an admin key."""
    return start(admin_key=KEY)


def test_pause_and_resume(operated: Any) -> None:
    """A paused engine says so and keeps requests waiting; a resumed one runs."""
    assert operated.post("/engine/pause", {"mode": "keep"}, KEY).status_code == 200
    asked = operated.get("/engine/is_paused", KEY).json()
    assert asked["replies"][0]["values"] == {"is_paused": True}
    assert operated.post("/engine/resume", {}, KEY).status_code == 200
    answer = operated.post("/v1/completions", {"prompt": "hi", "max_tokens": 1})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("flush_cache", {}),
        ("release_memory", {}),
        ("resume_memory", {"tags": ["kv_cache", "weights"]}),
        ("profile", {"type": "start"}),
        ("profile", {"type": "stop"}),
        ("update_weights_from_disk", {"model_path": "there", "flush_cache": False}),
    ],
)
def test_operations_reach_the_engine(
    operated: Any, operation: str, arguments: dict[str, Any]
) -> None:
    """Each operation is carried out, or refused by the engine for its own reasons."""
    answer = operated.post(f"/engine/{operation}", arguments, KEY)
    (reply,) = answer.json()["replies"]
    assert answer.status_code == (200 if reply["success"] else 409)
    assert "unknown" not in reply["message"]


@pytest.mark.parametrize(
    ("operation", "arguments", "param"),
    [
        ("pause", {"mode": "later"}, "mode"),
        ("pause", {"how": "abort"}, "how"),
        ("release_memory", {"tags": "all"}, "tags"),
        ("update_weights_from_disk", {}, "model_path"),
        ("profile", {"type": 1}, "type"),
        ("resume", {"now": True}, "now"),
    ],
)
def test_wrong_arguments_are_named(
    operated: Any, operation: str, arguments: dict[str, Any], param: str
) -> None:
    """An argument that is wrong or unknown is a 400 that names it."""
    answer = operated.post(f"/engine/{operation}", arguments, KEY)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("value", [10**30, json.loads("[" * 200 + "]" * 200)])
def test_what_cannot_be_sent_is_refused(operated: Any, value: Any) -> None:
    """A number of more than 64 bits and a value that is too deep are a 400, not a wait."""
    answer = operated.post("/engine/fly", {"high": value}, KEY)
    assert answer.status_code == 400
    assert "cannot be sent" in answer.json()["error"]["message"]


def test_an_operation_nobody_has(operated: Any) -> None:
    """What the engine refuses is a 409 with its reply and an error."""
    answer = operated.post("/engine/fly", {"high": True}, KEY)
    assert answer.status_code == 409
    assert not answer.json()["replies"][0]["success"]
    assert "unknown control operation 'fly'" in answer.json()["error"]["message"]


def test_an_engine_describes_itself(operated: Any) -> None:
    """The description tells the engine's state, and the options of plugins to operators only."""
    for key in (KEY, None):
        (reply,) = operated.get("/engine/describe", key).json()["replies"]
        assert reply["values"]["state"]["name"] == "running"
        assert all(("options" in row) == (key == KEY) for row in reply["values"]["plugins"])


def test_a_dead_engine_cannot_be_operated(operated: Any) -> None:
    """Operations on an engine that is gone are a 503."""
    operated.engine.stop()
    assert operated.post("/engine/pause", {}, KEY).status_code == 503
