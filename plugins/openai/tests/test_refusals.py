# SPDX-License-Identifier: MIT
"""Bad input: the right status and an OpenAI error that names the field, and nobody else notices."""

from __future__ import annotations

from typing import Any

import pytest

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt": 5}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [1.5]}, "prompt[0]"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [2048]}, "prompt"),
        ({"prompt": "x" * 600}, "prompt"),
        ({"prompt": ["a"] * 100, "n": 100}, "prompt"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 510}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 1.5}, "n"),
        ({"best_of": 3}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop": "x" * 2000}, "stop"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"frequency_penalty": 3}, "frequency_penalty"),
        ({"presence_penalty": -3}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"seed": 2**63}, "seed"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"9999": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias[...]"),
        ({"stop_token_ids": [5000]}, "stop_token_ids"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": []}, "stream_options"),
        ({"request_id": "a\nb"}, "request_id"),
        ({"request_id": "a\n"}, "request_id"),
        ({"max_token": 5}, "max_token"),
        ({"response_format": {"type": "text"}}, "response_format"),
    ],
)
def test_a_completion_that_cannot_be(site: Any, changes: dict[str, Any], param: str) -> None:
    """Each wrong field of a completion is a 400 that names it."""
    answer = site.post(COMPLETIONS, {"prompt": "hi", "max_tokens": 1, **changes})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert answer.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"messages": [{"role": "user", "text": "hi"}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant"}, {"role": "tool"}]}, "messages[1].content"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "wizard", "content": "hi"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content[0].type",
        ),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, "messages"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_completion_tokens": 511}, "max_completion_tokens"),
        ({"max_tokens": 511}, "max_tokens"),
        ({"logprobs": 3}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"prompt": "hi"}, "prompt"),
        ({"functions": []}, "functions"),
    ],
)
def test_a_chat_that_cannot_be(site: Any, changes: dict[str, Any], param: str) -> None:
    """Each wrong field of a chat is a 400 that names it."""
    answer = site.post(CHAT, {"messages": USER, **changes})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"prompt": NaN}', b"[" * 100_000],
)
def test_a_body_that_is_no_object(site: Any, path: str, content: bytes) -> None:
    """What is no JSON object is a 400, however deep it nests."""
    answer = site.post(path, content)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


def test_a_lone_surrogate_is_no_text(site: Any) -> None:
    """Half a surrogate pair, which JSON can spell, is refused as the prompt's fault."""
    answer = site.post(COMPLETIONS, b'{"prompt": "\\ud800"}')
    assert answer.status_code == 400


def test_a_mistyped_field_is_guessed(site: Any) -> None:
    """The refusal of an unknown field names the one that was probably meant."""
    answer = site.post(COMPLETIONS, {"prompt": "hi", "max_token": 5})
    assert "did you mean 'max_tokens'" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, "/tokenize", "/detokenize"])
def test_an_unknown_model(site: Any, path: str) -> None:
    """Another model than the one that is served is a 404."""
    body = {"prompt": "hi", "messages": USER, "tokens": [1]}
    fields = {"/tokenize": ("prompt",), "/detokenize": ("tokens",), CHAT: ("messages",)}
    given = {name: body[name] for name in fields.get(path, ("prompt",))}
    answer = site.post(path, {"model": "other", **given})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


def test_an_id_in_use(site: Any) -> None:
    """A request id that is in flight is refused, and the first request goes on."""
    body = {"prompt": "hi", "max_tokens": 400, "request_id": "twice", "stream": True}
    with site.http() as http, http.stream("POST", COMPLETIONS, json=body) as first:
        lines = first.iter_lines()
        next(lines)
        second = site.post(COMPLETIONS, {**body, "stream": False})
        assert (second.status_code, second.json()["error"]["param"]) == (400, "request_id")
        assert [*lines][-2] == "data: [DONE]"


@pytest.mark.parametrize(("path", "status"), [("/nothing", 404), (CHAT, 405)])
def test_a_place_that_is_not_there(site: Any, path: str, status: int) -> None:
    """An unknown path and a wrong method have error bodies too."""
    answer = site.get(path)
    assert answer.status_code == status
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_a_body_that_is_too_large(start: Any) -> None:
    """A body beyond the limit is a 413, announced or not."""
    site = start(max_body_bytes=1000)
    body = b'{"prompt": "' + b"x" * 1000 + b'"}'
    assert site.post(COMPLETIONS, body).status_code == 413
    with site.http() as http:
        assert http.post(COMPLETIONS, content=iter([body])).status_code == 413


def test_an_engine_without_a_tokenizer(start: Any) -> None:
    """Text is refused where nothing can read it, and token ids are served."""
    site = start(tokenizer=None)
    assert site.post(COMPLETIONS, {"prompt": "hi"}).json()["error"]["param"] == "prompt"
    assert site.post(CHAT, {"messages": USER}).json()["error"]["param"] == "messages"
    answer = site.post(COMPLETIONS, {"prompt": [1, 2], "max_tokens": 2, "return_token_ids": True})
    assert answer.json()["choices"][0]["token_ids"] == [1000, 1001]


def test_a_rank_that_is_not_there(site: Any) -> None:
    """The header that pins a request to a rank is refused for a rank nobody has."""
    with site.http() as http:
        for rank in ("7", "x"):
            headers = {"X-Data-Parallel-Rank": rank}
            answer = http.post(COMPLETIONS, json={"prompt": "hi"}, headers=headers)
            assert answer.status_code == 400
