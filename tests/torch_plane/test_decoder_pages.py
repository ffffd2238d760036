# SPDX-License-Identifier: MIT
"""A row's logits come from its own positions only, however it got there and whoever is near."""

from __future__ import annotations

import pytest
import torch

from tokenspeed_core.models.config import parse_config
from tokenspeed_core.models.expected_weights import expected_weights
from tokenspeed_core.models.weights import TensorWeights
from tokenspeed_core.testing.paged_texts import PagedTexts, Text
from tokenspeed_core.torch_plane.decoder import Decoder
from tokenspeed_core.torch_plane.plain_rows import PlainRows

NAN, INF = float("nan"), float("inf")
SHAPE = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}


@pytest.fixture(params=["fp32", "bf16", "bf16 by torch"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Decoder:
    """A small decoder with random weights: with the CPU's kernels, and as it is elsewhere."""
    if "torch" in request.param:
        make = "tokenspeed_core.torch_plane.decoder.row_operations"
        monkeypatch.setattr(make, lambda _, device: PlainRows(device))
    config = parse_config(SHAPE)
    torch.manual_seed(3)
    weights = {n: torch.randn(shape) * 0.2 for n, shape in expected_weights(config).items()}
    dtype = torch.float32 if request.param == "fp32" else torch.bfloat16
    return Decoder(config, TensorWeights(weights), dtype=dtype, device=torch.device("cpu"))


def text_of(length: int, seed: int = 0) -> list[int]:
    """Random token ids, the same in every run."""
    generator = torch.Generator().manual_seed(seed)
    found: list[int] = torch.randint(97, (length,), generator=generator).tolist()
    return found


def started(texts: PagedTexts, length: int) -> Text:
    """A request whose prompt of that length is cached."""
    text = Text()
    texts.feed([(text, text_of(length, seed=length))])
    return text


def steps(texts: PagedTexts, text: Text, *, count: int) -> torch.Tensor:
    """Logits of some decode steps alone."""
    return torch.stack([texts.feed([], (text, 5 + i))[0] for i in range(count)])


def a_bit_of_everything(texts: PagedTexts) -> torch.Tensor:
    """Logits of whole prompts, chunks over a prefix short and long, and steps."""
    a, b = Text(), Text()
    found = [texts.feed([(a, text_of(9)), (b, text_of(150))])]
    found.append(texts.feed([(a, text_of(7))], (b, 4)))
    found.append(texts.feed([(a, text_of(170))], (b, 5)))
    found.append(texts.feed([], (a, 6), (b, 7)))
    return torch.cat(found)


@pytest.mark.parametrize("garbage", [NAN, INF, -INF, 1e30])
def test_what_pages_held_before_is_never_seen(decoder: Decoder, garbage: float) -> None:
    """Over pages full of garbage, the null page too, the logits are those over clean pages."""
    clean = a_bit_of_everything(PagedTexts.over(decoder, garbage=0.0))
    assert torch.equal(a_bit_of_everything(PagedTexts.over(decoder, garbage=garbage)), clean)


def test_a_row_decodes_alone_as_in_company(decoder: Decoder) -> None:
    """Rows of 1 to 200 positions have, together, the very logits each has alone."""
    lengths = [1, 3, 63, 64, 65, 130, 200]
    texts = PagedTexts.over(decoder, num_pages=400)
    rows = [started(texts, length) for length in lengths]
    together = [texts.feed([], *((row, 5 + i) for row in rows)) for i in range(6)]
    for number, length in enumerate(lengths):
        alone = PagedTexts.over(decoder, num_pages=400, seed=number)
        expected = steps(alone, started(alone, length), count=6)
        assert torch.equal(torch.stack(together)[:, number], expected)


def test_a_broken_neighbour_breaks_nobody_else(decoder: Decoder) -> None:
    """A row whose keys and values are not numbers leaves the row beside it untouched."""
    texts = PagedTexts.over(decoder)
    good, bad = started(texts, 70), started(texts, 20)
    texts.cache.pages[:, :, bad.pages] = NAN
    found = torch.stack([texts.feed([], (bad, 1), (good, 5 + i))[1] for i in range(3)])
    alone = PagedTexts.over(decoder)
    assert torch.equal(found, steps(alone, started(alone, 70), count=3))


def test_rows_come_and_go(decoder: Decoder) -> None:
    """Rows that leave, are held out, return and begin between others keep their logits."""
    texts = PagedTexts.over(decoder)
    a, b, c, d = (started(texts, length) for length in (70, 10, 130, 30))
    found = [texts.feed([], (a, 5), (b, 5), (c, 5))[2]]
    found.append(texts.feed([], (c, 6))[0])
    found.append(texts.feed([], (d, 5), (b, 6), (c, 7))[2])
    texts.feed([], (a, 6), (d, 6))
    found.append(texts.feed([], (a, 7), (c, 8), (b, 7))[1])
    alone = PagedTexts.over(decoder)
    assert torch.equal(torch.stack(found), steps(alone, started(alone, 130), count=4))


def test_pages_taken_over_are_not_taken_for_their_last_holder_s(decoder: Decoder) -> None:
    """A request in another's pages, of the same length, has its own logits."""
    texts = PagedTexts.over(decoder)
    first = started(texts, 20)
    texts.feed([], (first, 1))
    texts.free(first)
    second = Text()
    texts.feed([(second, text_of(21, seed=99))])
    found = steps(texts, second, count=2)
    alone = PagedTexts.over(decoder)
    other = Text()
    alone.feed([(other, text_of(21, seed=99))])
    assert torch.equal(found, steps(alone, other, count=2))


def test_pages_hold_what_was_decoded(decoder: Decoder) -> None:
    """A row moved to other pages after some steps goes on as if it had stayed."""
    texts = PagedTexts.over(decoder)
    row = started(texts, 62)
    steps(texts, row, count=4)
    moved = Text(cached=row.cached)
    moved.pages = [texts.page() for _ in row.pages]
    texts.cache.copy(row.pages, moved.pages)
    texts.cache.pages[:, :, row.pages] = NAN
    found = texts.feed([], (moved, 9))[0]
    stayed = PagedTexts.over(decoder)
    assert torch.equal(found, steps(stayed, started(stayed, 62), count=5)[4])
