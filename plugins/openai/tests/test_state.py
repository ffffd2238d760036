# SPDX-License-Identifier: MIT
"""What the server tells of itself, and who may hear it."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import isfunction
from typing import Any

import openai
import pytest

from tokenspeed_hookspecs import Plugin
from tokenspeed_openai.options import Options
from tokenspeed_openai.state import PHASES

CANARY = "canary-2f61"
COMPOSITION: Mapping[str, Any] = {
    "plugins": [
        {
            "name": "store",
            "state": "loaded",
            "version": "1.0",
            "source": "own 1.0",
            "reasons": [],
            "options": {"password": CANARY},
            "hooks": ["committed", "new_hook"],
        }
    ],
    "hooks": {"committed": ["store"], "new_hook": ["store"], "validate_request": ["store"]},
    "problems": [],
}
OPEN = ("/", "/health", "/ping", "/version", "/openapi.json")
FOR_CLIENTS = ("/v1/models", "/v1/models/scripted")
FOR_ADMINS = ("/engine/is_paused", "/engine/is_sleeping")


def test_the_model_is_listed(site: Any) -> None:
    """The one model is listed, and found by its name."""
    client = site.openai()
    (model,) = client.models.list().data
    assert model.id == client.models.retrieve("scripted").id == "scripted"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("org/other")


def test_a_model_has_the_name_it_is_given(start: Any) -> None:
    """Clients may know the model by another name, and then by no other."""
    site = start(served_model_name="org/mine")
    assert site.openai().models.retrieve("org/mine").id == "org/mine"
    answer = site.openai().completions.create(model="org/mine", prompt="hi", max_tokens=1)
    assert answer.model == "org/mine"
    assert site.post("/v1/completions", {"prompt": "hi", "model": "scripted"}).status_code == 404


def test_tokens_of_a_text(site: Any) -> None:
    """A text has its tokens, with or without the start token, and their texts if wanted."""
    answer = site.post("/tokenize", {"prompt": "hé", "return_token_strs": True}).json()
    assert answer["tokens"] == [2046, 104, 195, 169]
    assert answer["token_strs"] == ["<|start|>", "h", "bytes:\\xc3", "bytes:\\xa9"]
    assert (answer["count"], answer["max_model_len"]) == (4, 512)
    bare = site.post("/tokenize", {"prompt": "hé", "add_special_tokens": False}).json()
    assert bare["tokens"] == [104, 195, 169]


def test_tokens_of_a_conversation(site: Any) -> None:
    """A conversation has the tokens a chat would give the model."""
    messages = [{"role": "user", "content": "hi"}]
    answer = site.post("/tokenize", {"messages": messages}).json()
    assert bytes(answer["tokens"]) == b"user: hi\nassistant:"
    bare = site.post("/tokenize", {"messages": messages, "add_generation_prompt": False}).json()
    assert bytes(bare["tokens"]) == b"user: hi\n"


def test_text_of_tokens(site: Any) -> None:
    """Tokens have their text, special ones included."""
    answer = site.post("/detokenize", {"tokens": [2046, 104, 1000]}).json()
    assert answer == {"prompt": "<|start|>h 1000"}
    assert site.post("/detokenize", {"tokens": [2048]}).json()["error"]["param"] == "tokens"


def test_versions(site: Any) -> None:
    """Engine and server have versions."""
    assert set(site.get("/version").json()) == {"version", "server"}


def test_counters_move(start: Any) -> None:
    """What was asked and answered is counted, and the engine's cache is known."""
    site = start()
    site.openai().completions.create(model="scripted", prompt="hi", max_tokens=3, n=2)
    stats = site.get("/stats").json()
    assert stats["counters"] == {
        "requests": 1,
        "choices": 2,
        "open_choices": 0,
        "prompt_tokens": 3,
        "cached_tokens": 0,
        "completion_tokens": 6,
        "finished": {"length": 2},
    }
    assert stats["engines"][0]["total_pages"] == 512


def test_plugins_by_phase(start: Any) -> None:
    """The composition tells the hooks by phase, in a round's order, and no plugin's options."""
    site = start(composition=COMPOSITION)
    answer = site.get("/composition")
    assert answer.json()["hooks"] == [
        {"phase": "admission", "hooks": {"validate_request": ["store"]}},
        {"phase": "commit", "hooks": {"committed": ["store"]}},
        {"phase": "other", "hooks": {"new_hook": ["store"]}},
    ]
    assert CANARY not in answer.text


def test_phases_name_hooks() -> None:
    """Each name in the page's phases is a hook of the contract, and stands there once."""
    named = [hook for names in PHASES.values() for hook in names]
    assert len(named) == len({*named})
    assert [hook for hook in named if not isfunction(vars(Plugin).get(hook))] == []


def test_with_a_key(start: Any) -> None:
    """With an api key, clients need it and health checks do not."""
    site = start(api_key=CANARY)
    assert {site.get(path).status_code for path in OPEN} == {200}
    assert {site.get(path).status_code for path in FOR_CLIENTS} == {401}
    assert {site.get(path, "wrong").status_code for path in FOR_CLIENTS} == {401}
    assert {site.get(path, CANARY).status_code for path in FOR_CLIENTS} == {200}
    for path in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        assert site.post(path, {}).status_code == 401
    assert site.openai(CANARY).completions.create(model="scripted", prompt="hi").choices


def test_operators_need_the_admin_key(start: Any) -> None:
    """Control operations want the admin key, which the api key is not."""
    site = start(api_key="client", admin_key=CANARY)
    for path in FOR_ADMINS:
        statuses = [site.get(path, key).status_code for key in (None, "client", CANARY)]
        assert statuses == [401, 401, 200]
    actions = ("pause", "resume", "flush_cache", "release_memory", "resume_memory", "profile")
    for action in (*actions, "update_weights_from_disk", "anything"):
        assert site.post(f"/engine/{action}", {}).status_code == 401
        assert site.post(f"/engine/{action}", {}, "client").status_code == 401


def test_without_an_admin_key_nobody_operates(site: Any) -> None:
    """A server without an admin key refuses every control operation."""
    for key in (None, "x"):
        answer = site.post("/engine/pause", {}, key)
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (403, "no_admin_key")
        assert "--admin-key" in error["message"]


def test_no_answer_tells_a_key(start: Any) -> None:
    """Nothing the server says contains one of its keys."""
    site = start(api_key=CANARY, admin_key=f"{CANARY}-admin")
    paths = (*OPEN, *FOR_CLIENTS, *FOR_ADMINS, "/stats", "/composition", "/engine/describe", "/x")
    told = [site.get(path, key).text for path in paths for key in (CANARY, f"{CANARY}-admin", "x")]
    assert not any(CANARY in text for text in told)
    assert CANARY not in repr(Options(api_key=CANARY, admin_key=CANARY))
