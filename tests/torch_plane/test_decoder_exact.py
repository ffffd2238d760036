# SPDX-License-Identifier: MIT
"""At a real model's sizes a token's logits are the same bits however it was fed."""

from __future__ import annotations

import itertools

import pytest
import torch

from tokenspeed_core.models.config import parse_config
from tokenspeed_core.models.expected_weights import expected_weights
from tokenspeed_core.models.weights import TensorWeights
from tokenspeed_core.testing.paged_texts import PagedTexts, Text
from tokenspeed_core.torch_plane import linear
from tokenspeed_core.torch_plane.decoder import Decoder

# Some of these products oneDNN, where they are its, sums in other ways for one row than for many.
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 1024,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 1,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}


def a_decoder(dtype: torch.dtype) -> Decoder:
    """One layer of SmolLM2's sizes with random weights."""
    config = parse_config(SHAPE)
    torch.manual_seed(3)
    weights = {n: torch.randn(shape) * 0.1 for n, shape in expected_weights(config).items()}
    return Decoder(config, TensorWeights(weights), dtype=dtype, device=torch.device("cpu"))


def some_text(length: int) -> list[int]:
    """Random token ids, the same in every run."""
    generator = torch.Generator().manual_seed(length)
    found: list[int] = torch.randint(1024, (length,), generator=generator).tolist()
    return found


@pytest.fixture(params=["chosen", "plain"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How products are computed: as is best here, or by torch's own, as other devices do."""
    found: str = request.param
    if found == "plain":
        monkeypatch.setattr(linear, "_has_own_kernel", lambda: False)
        monkeypatch.setattr(linear, "_can_pack", lambda dtype: False)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("company", [1, 3, 15, 40])
@pytest.mark.usefixtures("form")
def test_decoding_is_the_same_bits_in_any_company(dtype: torch.dtype, company: int) -> None:
    """A row beside others of other lengths has the logits it has alone."""
    decoder, prompt = a_decoder(dtype), some_text(90)
    texts = PagedTexts.over(decoder, num_pages=2000)
    row, *others = (Text() for _ in range(1 + company))
    texts.feed([(row, prompt), *((other, some_text(7 * i + 1)) for i, other in enumerate(others))])
    beside = [(other, 3) for other in others]
    found = [texts.feed([], *beside[:2], (row, 5), *beside[2:])[len(beside[:2])] for _ in range(3)]
    alone = PagedTexts.over(decoder)
    only = Text()
    alone.feed([(only, prompt)])
    assert torch.equal(torch.stack(found), torch.cat([alone.feed([], (only, 5)) for _ in range(3)]))


@pytest.mark.parametrize("cuts", [[1], [128], [3, 4, 131], [100, 200], [255, 256, 299]])
def test_a_prompt_is_the_same_bits_wherever_it_is_cut(cuts: list[int]) -> None:
    """In bf16 every token of a prompt has the same logits in chunks as in one piece."""
    decoder, prompt = a_decoder(torch.bfloat16), some_text(300)
    texts = PagedTexts.over(decoder)
    whole = texts.feed([(Text(), prompt)])
    row = Text()
    parts = [
        texts.feed([(row, prompt[start:stop])])
        for start, stop in itertools.pairwise([0, *cuts, len(prompt)])
    ]
    assert torch.equal(torch.cat(parts), whole)
