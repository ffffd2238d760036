# SPDX-License-Identifier: MIT
"""The decoder computes what transformers computes, from pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import transformers

from tokenspeed_core.models.config import parse_config
from tokenspeed_core.models.weights import TensorWeights
from tokenspeed_core.testing.paged_texts import PagedTexts, Text
from tokenspeed_core.torch_plane.decoder import Decoder

SHAPE = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rope_theta": 1000.0,
    "initializer_range": 0.2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
MODELS: dict[str, tuple[str, Mapping[str, object]]] = {
    "llama": ("Llama", {"tie_word_embeddings": True}),
    "one kv head a head": ("Llama", {"num_key_value_heads": 6}),
    "one kv head": ("Llama", {"num_key_value_heads": 1}),
    "untied, biased": (
        "Llama",
        {"tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
    ),
    "wide heads": ("Llama", {"head_dim": 16}),
    "linear": ("Llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "llama3": ("Llama", {"rope_scaling": LLAMA3}),
    "yarn": ("Llama", {"rope_scaling": YARN}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
}


def a_pair(kind: str) -> tuple[Any, Decoder]:
    """A random small model of transformers, and ours with its weights."""
    family, changes = MODELS[kind]
    torch.manual_seed(1)
    config = getattr(transformers, f"{family}Config")(**{**SHAPE, **changes})
    reference = getattr(transformers, f"{family}ForCausalLM")(config).eval()
    for name, weight in reference.named_parameters():
        if "norm" in name or name.endswith("bias"):
            torch.nn.init.normal_(weight, mean=1.0, std=0.3)
    weights = {
        name: weight
        for name, weight in reference.state_dict().items()
        if not (config.tie_word_embeddings and name == "lm_head.weight")
    }
    ours = Decoder(
        parse_config({**config.to_dict(), "architectures": [f"{family}ForCausalLM"]}),
        TensorWeights(weights),
        dtype=torch.float32,
        device=torch.device("cpu"),
    )
    return reference, ours


def some_text(length: int, seed: int = 0) -> list[int]:
    """Random token ids, the same in every run."""
    generator = torch.Generator().manual_seed(seed)
    found: list[int] = torch.randint(SHAPE_VOCAB, (length,), generator=generator).tolist()
    return found


def expected(reference: Any, text: list[int]) -> torch.Tensor:
    """The reference's logits [tokens, vocab] of a whole text."""
    with torch.no_grad():
        logits: torch.Tensor = reference(torch.tensor([text])).logits[0]
    return logits


SHAPE_VOCAB = 97


@pytest.mark.parametrize("kind", MODELS)
def test_a_whole_prompt_has_the_logits_of_the_reference(kind: str) -> None:
    """One chunk from the first position gives every token the reference's logits."""
    reference, ours = a_pair(kind)
    texts, text = PagedTexts.over(ours), some_text(150)
    logits = texts.feed([(Text(), text)])
    torch.testing.assert_close(logits, expected(reference, text), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["llama", "one kv head a head", "qwen3"])
def test_chunks_and_steps_together_have_the_logits_of_the_reference(kind: str) -> None:
    """A text fed in chunks beside decoding rows, then decoding itself, has the same logits."""
    reference, ours = a_pair(kind)
    texts = PagedTexts.over(ours)
    a, b, c = (some_text(40, seed) for seed in (1, 2, 3))
    first, second, third = Text(), Text(), Text()
    found = [texts.feed([(first, a[:11]), (second, b[:30])])]
    found.append(texts.feed([(first, a[11:29]), (third, c[:7])], (second, b[30])))
    found.append(texts.feed([(first, a[29:31])], (second, b[31]), (third, c[7])))
    found.append(texts.feed([], (first, a[31]), (third, c[8]), (second, b[32])))
    of_a, of_b, of_c = (expected(reference, text) for text in (a, b, c))
    wanted = [of_a[:11], of_b[:30]]
    wanted += [of_a[11:29], of_c[:7], of_b[30:31]]
    wanted += [of_a[29:31], of_b[31:32], of_c[7:8]]
    wanted += [of_a[31:32], of_c[8:9], of_b[32:33]]
    torch.testing.assert_close(torch.cat(found), torch.cat(wanted), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("steps", [1, 70])
def test_rows_of_very_different_lengths_decode_as_the_reference(steps: int) -> None:
    """A row of 3 positions beside one of 130 has the reference's logits at every step."""
    reference, ours = a_pair("llama")
    texts = PagedTexts.over(ours)
    short, long = some_text(3 + steps, seed=1), some_text(130 + steps, seed=2)
    one, other = Text(), Text()
    texts.feed([(one, short[:3]), (other, long[:130])])
    found = [texts.feed([], (one, short[3 + i]), (other, long[130 + i])) for i in range(steps)]
    wanted = torch.stack([expected(reference, short)[3:], expected(reference, long)[130:]], dim=1)
    torch.testing.assert_close(torch.stack(found), wanted, atol=1e-4, rtol=1e-4)
