# SPDX-License-Identifier: MIT
"""Logprobs of sampled and of prompt tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from tokenspeed_core.testing.messages import request
from tokenspeed_core.testing.streams import Stream
from tokenspeed_core.testing.torch_engine import TorchEngine
from tokenspeed_core.torch_plane import logprobs
from tokenspeed_core.torch_plane.logprobs import Scores, score, score_hidden, spread
from tokenspeed_hookspecs import AddRequest, LogprobOptions, PromptLogprobs

MakeEngine = Callable[..., TorchEngine]
PROMPT = [(7 * i) % 290 for i in range(70)]


def scored(name: str, prompt: Sequence[int], *, start: int = 0, top: int = 0) -> AddRequest:
    """A greedy request for one token that scores its prompt from `start`."""
    options = LogprobOptions(start, top)
    return request(name, prompt, budget=1, temperature=0.0, logprobs=options)


def prompt_scores(stream: Stream) -> PromptLogprobs:
    """The prompt scores of a stream, which came exactly once."""
    found = [c.details.prompt for c in stream.chunks if c.details and c.details.prompt]
    assert len(found) == 1
    return found[0]


def alternatives(scores: Scores) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and ids of the alternatives, which were asked for."""
    assert scores.alternative_values is not None
    assert scores.alternative_ids is not None
    return scores.alternative_values, scores.alternative_ids


def test_a_score_is_the_log_softmax() -> None:
    """Values are those of the targets, alternatives the best ones in order."""
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(1)).bfloat16()
    expected = torch.log_softmax(logits.float(), -1)
    scores = score(logits, torch.tensor([4, 0, 49]), top=2)
    values, ids = alternatives(scores)
    assert scores.values.tolist() == [float(expected[i, t]) for i, t in enumerate((4, 0, 49))]
    assert torch.equal(values, expected.sort(-1, descending=True).values[:, :2])
    assert torch.equal(expected.gather(-1, ids), values)


def test_equal_alternatives_come_alike_for_any_number_wanted() -> None:
    """Among ties, the first alternatives do not depend on how many are asked for."""
    logits = torch.zeros(1, 1000)
    wide = alternatives(score(logits, torch.tensor([0]), top=20))[1]
    narrow = alternatives(score(logits, torch.tensor([0]), top=3))[1]
    assert narrow.tolist() == wide[:, :3].tolist()


def test_scoring_in_parts_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little memory the logits may take, the scores are the same."""
    hidden = torch.randn(10, 8, generator=torch.Generator().manual_seed(1))
    head = torch.randn(8, 50, generator=torch.Generator().manual_seed(2))
    targets = torch.arange(10)
    asked: list[int] = []

    def logits_of(part: torch.Tensor) -> torch.Tensor:
        asked.append(len(part))
        return part @ head

    whole = score(hidden @ head, targets, top=2)
    monkeypatch.setattr(logprobs, "CHUNK_BYTES", 3 * 4 * 50)
    parts = score_hidden(hidden, targets, head=logits_of, vocab=50, top=2)
    assert asked == [3, 3, 3, 1]
    assert torch.allclose(parts.values, whole.values)
    assert torch.equal(alternatives(parts)[1], alternatives(whole)[1])


def test_scores_of_some_rows_find_their_places() -> None:
    """Rows that wanted nothing hold zeros."""
    scores = score(torch.zeros(2, 4), torch.tensor([0, 1]), top=1)
    wide = spread(scores, torch.tensor([2, 0]), num_rows=3)
    quarter = float(torch.tensor(0.25).log())
    assert wide.values.tolist() == pytest.approx([quarter, 0.0, quarter])
    assert alternatives(wide)[0].shape == (3, 1)


@pytest.mark.parametrize("chunk", [256, 16])
def test_prompt_scores_are_those_of_generating_the_prompt(
    start_engine: MakeEngine, chunk: int
) -> None:
    """A prompt made of a request's own greedy output is scored as that output was."""
    engine = start_engine(scheduler={"max_scheduled_tokens": chunk})
    wish = LogprobOptions(top=2)
    first = engine.generate(
        [request("a", PROMPT[:20], budget=30, temperature=0.0, ignore_eos=True, logprobs=wish)]
    )[0]
    second = engine.generate([scored("b", PROMPT[:20] + first.tokens, start=19, top=2)])[0]
    scores = prompt_scores(second)
    assert scores.values[0] is None
    assert scores.values[1:] == pytest.approx(first.logprobs, abs=1e-4)
    assert scores.alternatives is not None
    assert [ids[0] for _, ids in (each for each in scores.alternatives if each)] == first.tokens


def test_prompt_scores_do_not_depend_on_the_cache_or_the_order(start_engine: MakeEngine) -> None:
    """OUT-10: cached, and among other prompts, every position is scored as when cold."""
    engine = start_engine()
    cold = prompt_scores(engine.generate([scored("cold", PROMPT)])[0]).values
    others = [scored("x", PROMPT[30:]), scored("warm", PROMPT), scored("y", PROMPT[::-1])]
    warm = prompt_scores(engine.generate(others)[1]).values
    assert len(cold) == len(PROMPT)
    assert warm[1:] == pytest.approx(cold[1:], abs=1e-4)


def test_sampled_logprobs_are_those_of_the_raw_logits(start_engine: MakeEngine) -> None:
    """Temperature, penalties and bias change what is sampled, not what is reported."""
    engine = start_engine()
    shaping = {"temperature": 1.7, "repetition_penalty": 1.5, "logit_bias": {5: 4.0}, "seed": 3}
    wish = LogprobOptions()
    first = engine.generate(
        [request("a", PROMPT[:20], budget=20, ignore_eos=True, logprobs=wish, **shaping)]
    )[0]
    again = engine.generate([scored("b", PROMPT[:20] + first.tokens, start=19)])[0]
    assert prompt_scores(again).values[1:] == pytest.approx(first.logprobs, abs=1e-4)


def test_only_those_who_ask_get_logprobs(start_engine: MakeEngine) -> None:
    """A neighbour's wish costs a request nothing and changes none of its tokens."""
    engine = start_engine()
    plain = request("plain", PROMPT, budget=5, temperature=0.0)
    alone = engine.generate([plain])[0].tokens
    asking = request("ask", PROMPT[3:], budget=5, temperature=0.0, logprobs=LogprobOptions(top=4))
    together = engine.generate([request("again", PROMPT, budget=5, temperature=0.0), asking])
    assert together[0].tokens == alone
    assert together[0].logprobs == []
    assert len(together[1].logprobs) == 5
