# SPDX-License-Identifier: MIT
"""`/v1/completions`, through the `openai` client. The plane's tokens are ` 1000`, ` 1001`, ..."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from attrs import frozen


@frozen
class Asked:
    """A completion that was asked for, whole and as a stream."""

    whole: Any
    events: list[Any]

    @property
    def streamed_text(self) -> str:
        return "".join(event.choices[0].text for event in self.events if event.choices)


Ask = Callable[..., Asked]


@pytest.fixture
def ask(site: Any) -> Ask:
    """Ask for a completion of `hi` with four tokens, unless told otherwise."""

    def ask(extra: Mapping[str, Any] | None = None, **wishes: Any) -> Asked:
        body = {"model": "scripted", "prompt": "hi", "max_tokens": 4, **wishes}
        create = site.openai().completions.create
        events = list(create(**body, stream=True, extra_body=extra))
        return Asked(create(**body, extra_body=extra), events)

    return ask


def test_a_prompt_is_completed(ask: Ask) -> None:
    """The engine's tokens come back as text, with the reason they ended and the usage."""
    answer = ask().whole
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason) == (" 1000 1001 1002 1003", "length")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 4)


def test_a_stream_has_the_same_text(ask: Ask) -> None:
    """The pieces of a stream, joined, are the text of the whole answer, a piece for each token."""
    asked = ask()
    assert asked.streamed_text == asked.whole.choices[0].text
    assert [event.choices[0].finish_reason for event in asked.events] == [*[None] * 3, "length"]


@pytest.mark.parametrize(
    ("prompt", "prompt_tokens"),
    [("hi", [3]), (["hi", "you"], [3, 4]), ([5, 6], [2]), ([[5, 6], [7]], [2, 1])],
)
def test_a_prompt_is_text_or_tokens(ask: Ask, prompt: Any, prompt_tokens: list[int]) -> None:
    """Texts, token ids, and lists of either are prompts, answered in their order."""
    answer = ask(prompt=prompt).whole
    assert [choice.index for choice in answer.choices] == list(range(len(prompt_tokens)))
    assert answer.usage.prompt_tokens == sum(prompt_tokens)


def test_default_budget(site: Any) -> None:
    """Without max_tokens a completion has sixteen."""
    answer = site.openai().completions.create(model="scripted", prompt="hi")
    assert answer.usage.completion_tokens == 16


def test_each_choice_is_a_request(site: Any, ask: Ask) -> None:
    """Choices are engine requests of their own, with a seed each and the prompt counted once."""
    answer = ask({"request_id": "r"}, n=3, seed=7).whole
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert [(each.request_id, each.sampling.seed) for each in site.client.sent[-3:]] == [
        ("r-0", 7),
        ("r-1", 8),
        ("r-2", 9),
    ]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 12)


def test_streamed_choices_are_told_apart(ask: Ask) -> None:
    """Each choice of a stream has its own index and its own end."""
    choices = [event.choices[0] for event in ask(n=2).events]
    texts = ["".join(each.text for each in choices if each.index == at) for at in (0, 1)]
    assert texts == [" 1000 1001 1002 1003"] * 2
    assert sorted(each.index for each in choices if each.finish_reason) == [0, 1]


@pytest.mark.parametrize("stop", ["1 10", ["nothing", "01 1"], " 1002"])
def test_a_stop_string_ends_the_text(site: Any, ask: Ask, stop: Any) -> None:
    """Text ends before a stop string that spans tokens, and the engine is told to stop."""
    asked = ask(stop=stop, max_tokens=200)
    met = stop if isinstance(stop, str) else stop[1]
    full = " 1000 1001 1002 1003"
    for text in (asked.whole.choices[0].text, asked.streamed_text):
        assert text == full[: full.index(met)]
    assert asked.whole.choices[0].finish_reason == "stop"
    assert asked.whole.choices[0].stop_reason == met
    assert asked.events[-1].choices[0].finish_reason == "stop"
    ids = [request.request_id for request in site.client.sent[-2:]]
    site.until(lambda: site.tokens_given.keys() >= {*ids})
    assert max(site.tokens_given[each] for each in ids) < 100


def test_a_stop_token_is_no_text(ask: Ask) -> None:
    """A token that ends the answer is counted, and not shown."""
    answer = ask({"stop_token_ids": [1002]}).whole
    assert answer.choices[0].text == " 1000 1001"
    assert (answer.choices[0].finish_reason, answer.choices[0].stop_reason) == ("stop", 1002)
    assert answer.usage.completion_tokens == 3


def test_logprobs(ask: Ask) -> None:
    """Each token has its logprob, the likely ones at its place, and its place in the text."""
    asked = ask(logprobs=2, max_tokens=2)
    scores = asked.whole.choices[0].logprobs
    assert scores.tokens == [" 1000", " 1001"]
    assert scores.token_logprobs == pytest.approx([-1.0, -1.001])
    assert [list(tops) for tops in scores.top_logprobs] == [[" 1000", " 901"], [" 1001", " 901"]]
    assert scores.text_offset == [0, 5]
    streamed = [event.choices[0].logprobs for event in asked.events]
    assert [offset for each in streamed for offset in each.text_offset] == [0, 5]


def test_no_alternatives_but_the_token_itself(ask: Ask) -> None:
    """With logprobs 0 each place holds the token that was taken."""
    tops = ask(logprobs=0, max_tokens=1).whole.choices[0].logprobs.top_logprobs
    assert [list(each) for each in tops] == [[" 1000"]]


def test_an_echoed_prompt_is_scored(ask: Ask) -> None:
    """With echo the prompt comes first, and its tokens have scores but the first."""
    asked = ask(echo=True, logprobs=1, max_tokens=1)
    (choice,) = asked.whole.choices
    assert choice.text == asked.streamed_text == "hi 1000"
    assert choice.logprobs.tokens == ["<|start|>", "h", "i", " 1000"]
    assert choice.logprobs.token_logprobs == [None, *map(pytest.approx, (-0.1, -0.2, -1.0))]
    assert choice.logprobs.text_offset == [0, 0, 1, 2]
    assert choice.logprobs.top_logprobs[0] is None


def test_a_prompt_can_be_scored_alone(ask: Ask) -> None:
    """With max_tokens 0 nothing is added to the prompt."""
    answer = ask(echo=True, logprobs=0, max_tokens=0).whole
    assert answer.choices[0].text == "hi"
    assert len(answer.choices[0].logprobs.tokens) == 3
    assert answer.usage.completion_tokens == 0


def test_a_stream_tells_no_usage_unasked(ask: Ask) -> None:
    """Without include_usage every event of a stream belongs to a choice."""
    assert [len(event.choices) for event in ask().events] == [1] * 4


def test_streamed_usage(site: Any) -> None:
    """The last event has no choices and the usage, with the tokens that came from the cache."""
    create = site.openai().completions.create
    body = {"model": "scripted", "prompt": list(range(500, 600)), "max_tokens": 2, "stream": True}
    for cached in (0, 96):
        events = list(create(**body, stream_options={"include_usage": True}))
        assert events[-1].choices == []
        assert events[-1].usage.prompt_tokens_details.cached_tokens == cached
        assert events[-1].usage.total_tokens == 102


def test_usage_in_every_event(site: Any) -> None:
    """With continuous_usage_stats each event tells the tokens so far."""
    options = {"continuous_usage_stats": True}
    body = {"model": "scripted", "prompt": "hi", "max_tokens": 3}
    events = list(site.openai().completions.create(**body, stream=True, stream_options=options))
    assert [event.usage.completion_tokens for event in events] == [1, 2, 3]


def test_tokens_are_returned_if_wanted(ask: Ask) -> None:
    """With return_token_ids an answer names its tokens and those of its prompt."""
    choice = ask({"return_token_ids": True}, prompt=[5, 6], max_tokens=2).whole.choices[0]
    assert (choice.token_ids, choice.prompt_token_ids) == ([1000, 1001], [5, 6])


def test_fields_reach_the_engine(site: Any, ask: Ask) -> None:
    """What a client says of sampling is what the engine is asked for."""
    ask(
        {"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.5, "min_tokens": 2, "ignore_eos": True},
        temperature=0.0,
        top_p=0.5,
        presence_penalty=1.0,
        frequency_penalty=-1.0,
        logit_bias={"7": -100},
    )
    sampling = site.client.sent[-1].sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.0, 0.5, 5)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1.0, -1.0)
    assert (sampling.min_p, sampling.repetition_penalty) == (0.1, 1.5)
    assert (sampling.min_new_tokens, sampling.ignore_eos) == (2, True)
    assert sampling.logit_bias == {7: -100.0}
