# SPDX-License-Identifier: MIT
"""Greedy fp32 tokens of the default model equal those of transformers, however they are computed.

A few prompts by default, one at a time at depth 0 and all at once at depth 1;
TOKENSPEED_FULL_REFERENCE=1 runs 32 prompts of 64 tokens in every way.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest
import torch
import transformers
from attrs import frozen

from tokenspeed_core.models.resolve import ModelFolder, resolve_model
from tokenspeed_core.testing.messages import request
from tokenspeed_core.testing.torch_engine import TorchEngine, TorchSetup
from tokenspeed_hookspecs import AddRequest

IS_FULL = bool(os.environ.get("TOKENSPEED_FULL_REFERENCE"))
PAGE = 16
NUM_PROMPTS, NUM_TOKENS = (32, 64) if IS_FULL else (6, 20)
OPENINGS = (
    "The capital of France is",
    "Question: Why is the sky blue on a clear day, and red in the evening? Answer:",
    "Here is a short story about a lighthouse keeper who lived alone with a cat. One morning",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "To bake a good loaf of bread, first mix the flour, the water, the salt and the yeast. Then",
    "In the year 1850 the city was small. Its people lived from fishing, trade and the making of "
    "rope, and few of them had ever seen a train. When the railway came, everything changed: the "
    "harbour was deepened, a market hall was built beside the church, and within ten years",
    "List three reasons to learn a second language:\n1.",
    "Water boils at 100 degrees Celsius at sea level; on a high mountain it boils at a lower",
)
TURNS = ("", " It is well known that", " However, my grandmother used to say", " In short,")


@frozen
class Reference:
    """Prompts, and the tokens transformers gives for them one by one."""

    prompts: list[list[int]]
    tokens: list[list[int]]

    def first(self, count: int) -> Reference:
        """The first of them."""
        return Reference(self.prompts[:count], self.tokens[:count])


def reference_tokens(model: transformers.PreTrainedModel, prompt: Sequence[int]) -> list[int]:
    """Greedy tokens of one prompt, whether they end the text or not."""
    tokens: list[int] = []
    fed, cache = torch.tensor([list(prompt)]), None
    for _ in range(NUM_TOKENS):
        output = model(fed, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache, fed = output.past_key_values, output.logits[:, -1].argmax(-1, keepdim=True)
        tokens.append(int(fed))
    return tokens


@pytest.fixture(scope="module")
def model() -> ModelFolder:
    """The default model."""
    return resolve_model("smollm2-135m")


@pytest.fixture(scope="module")
def reference(model: ModelFolder) -> Reference:
    """What transformers says."""
    texts = [opening + turn for turn in TURNS for opening in OPENINGS][:NUM_PROMPTS]
    tokenizer = model.load_tokenizer()
    prompts = [tokenizer.encode(text) for text in texts]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(model.path, dtype=torch.float32)
    with torch.inference_mode():
        return Reference(prompts, [reference_tokens(theirs, prompt) for prompt in prompts])


def greedy_requests(reference: Reference, name: str = "r") -> list[AddRequest]:
    """One request a prompt."""
    return [
        request(f"{name}{i}", prompt, budget=NUM_TOKENS, temperature=0.0, ignore_eos=True)
        for i, prompt in enumerate(reference.prompts)
    ]


BATCHES_AND_DEPTHS = [(1, 0), (16, 1), *([(1, 1), (16, 0)] if IS_FULL else [])]
WAYS = {
    "plain": {},
    "chunks of 32": {"max_scheduled_tokens": 32},
    "retractions": {"snapshot_pages": 257, "max_retracted": 8, "force_retraction_every": 3},
    "prefix hits": {},
    "prefix hits with a host tier": {"host_pages": 257},
}


@pytest.mark.slow
@pytest.mark.timeout(3600 if IS_FULL else 600)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("batch", "depth"), BATCHES_AND_DEPTHS)
def test_greedy_tokens_are_those_of_transformers(
    reference: Reference, model: ModelFolder, *, batch: int, depth: int, way: str
) -> None:
    """All tokens are the same, whatever the batch, the depth and the way."""
    asked = reference if batch > 1 or IS_FULL else reference.first(2)
    scheduler = {"max_batch_size": 16, "page_size": PAGE, **WAYS[way]}
    with TorchEngine(TorchSetup(model=model, depth=depth, scheduler=scheduler)) as engine:
        cold = engine.generate(greedy_requests(asked), at_once=batch)
        assert [stream.tokens for stream in cold] == asked.tokens
        if "hits" not in way:
            return
        warm = engine.generate(greedy_requests(asked, "again"), at_once=batch)
        assert [stream.tokens for stream in warm] == asked.tokens
        hits = [stream.chunks[-1].cached_tokens for stream in warm]
        assert all(hits[i] for i, prompt in enumerate(asked.prompts) if len(prompt) > PAGE)
