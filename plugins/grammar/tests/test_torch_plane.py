# SPDX-License-Identifier: MIT
"""Constrained requests on the torch plane, with a little model that says anything."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from attrs import evolve, frozen
from torch import Tensor

from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.testing.messages import request
from tokenspeed_core.testing.small_tokenizer import small_tokenizer
from tokenspeed_core.testing.streams import Stream
from tokenspeed_core.testing.tiny_model import TinyModel, tiny_model
from tokenspeed_core.testing.torch_engine import TorchEngine, TorchSetup
from tokenspeed_core.testing.torch_world import TorchWorld
from tokenspeed_grammar.plugin import GrammarPlugin
from tokenspeed_grammar.torch_extension import (
    HostCopy,
    TorchGrammar,
    apply_mask,
    barred_on_device,
)
from tokenspeed_hookspecs import AddRequest, DataPlane, DataPlaneExtension, hookimpl

VOCAB = 300
PATTERNS = ("[a-z]{4,20}", r"\d{3}-\d{2,9}", "(yes|no|perhaps)!", "[a-z ]+[.]", "x{30}")


@frozen
class LateCopy(HostCopy):
    """Tokens that are not there before somebody waits for them."""

    @property
    def is_there(self) -> bool:
        return False


class LateGrammar(GrammarPlugin):
    """The plugin as on a device: matchers go on when a token is needed."""

    @hookimpl
    def extend_data_plane(self, plane: DataPlane) -> Sequence[DataPlaneExtension]:
        (extension,) = super().extend_data_plane(plane)
        assert isinstance(extension, TorchGrammar)
        extension.copy = LateCopy
        return [extension]


@pytest.fixture(scope="module")
def tiny() -> TinyModel:
    """A model whose ends are the tokenizer's two special tokens."""
    return tiny_model()


def _setup(tiny: TinyModel, **more: Any) -> TorchSetup:
    usual: dict[str, Any] = {
        "model": tiny,
        "engine": {"threads": 1},
        "plugins": (GrammarPlugin,),
        "tokenizer": small_tokenizer(vocab_size=VOCAB),
    }
    return TorchSetup(**{**usual, **more})


def _constrained() -> list[AddRequest]:
    """Requests under every pattern, drawn and greedy, with every kind of shaping."""
    ways: list[dict[str, Any]] = [{}, {"top_k": 1}, {"top_p": 0.8}, {"repetition_penalty": 1.5}]
    return [
        evolve(
            request(f"g-{row}-{way}", 20 + row, budget=40, seed=way, **ways[way]),
            features={"regex": pattern},
        )
        for row, pattern in enumerate(PATTERNS)
        for way in range(len(ways))
    ]


def _plain() -> list[AddRequest]:
    return [request(f"p-{row}", 10 + row, budget=30, seed=row) for row in range(8)]


def _texts(streams: Sequence[Stream]) -> list[str]:
    tokenizer = small_tokenizer(vocab_size=VOCAB)
    return [tokenizer.decode(stream.tokens) for stream in streams]


def _generate(setup: TorchSetup, requests: Sequence[AddRequest]) -> list[list[int]]:
    with TorchEngine(setup) as engine:
        return [stream.tokens for stream in engine.generate(requests)]


def test_texts_follow_their_grammars(tiny: TinyModel) -> None:
    """What ended by itself matches its pattern; what did not is a text the pattern begins with."""
    requests = _constrained()
    with TorchEngine(_setup(tiny)) as engine:
        streams = engine.generate(requests)
    ended = 0
    for asked, stream, text in zip(requests, streams, _texts(streams), strict=True):
        if stream.kind == "stop":
            ended += 1
            assert re.fullmatch(str(asked.features["regex"]), text), text
    assert ended >= 12
    assert {stream.kind for stream in streams} <= {"stop", "length"}


@pytest.mark.parametrize(
    "change",
    [
        {"depth": 0},
        {"plugins": (LateGrammar,)},
        {"plugins": (LateGrammar,), "depth": 0},
        {"scheduler": {"max_batch_size": 2}},
        {"scheduler": {"max_scheduled_tokens": 16}},
        {"scheduler": {"snapshot_pages": 65, "max_retracted": 8, "force_retraction_every": 3}},
    ],
    ids=["depth 0", "late", "late at depth 0", "two at once", "chunks", "retracted"],
)
def test_tokens_do_not_depend_on_when_things_happen(
    tiny: TinyModel, change: dict[str, Any]
) -> None:
    """Depth, deferral, company, chunks and retraction leave every token as it is."""
    usual = _generate(_setup(tiny), _constrained())
    assert _generate(_setup(tiny, **change), _constrained()) == usual


@pytest.mark.parametrize("topology", [Topology(tp=2), Topology(pp=2)], ids=["tp", "pp"])
def test_ranks_give_the_tokens_of_one(tiny: TinyModel, topology: Topology) -> None:
    """Positions and stages end requests alike, and say what one rank says."""
    usual = _generate(_setup(tiny), _constrained())
    sizes = {"tp": topology.tp, "pp": topology.pp}
    setup = _setup(tiny, engine={"threads": 1, **sizes})
    with TorchWorld(topology, setup) as world:
        assert [stream.tokens for stream in world.generate(_constrained())] == usual


def test_plain_requests_say_the_same_beside_constrained_ones(tiny: TinyModel) -> None:
    """Without the plugin, with it, and in the company of constrained rows."""
    alone = _generate(_setup(tiny, plugins=()), _plain())
    mixed = _generate(_setup(tiny), [*_plain(), *_constrained()])
    assert mixed[: len(alone)] == alone


def test_ends_are_barred_until_the_fewest_tokens_are_said(tiny: TinyModel) -> None:
    """`min_new_tokens` holds where the grammar leaves a choice."""
    least = evolve(
        request("r0", 10, budget=60, min_new_tokens=12, top_k=1), features={"regex": "[a-z]*"}
    )
    (tokens,) = _generate(_setup(tiny), [least])
    assert len(tokens) >= 12


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [1, 3], [2]])
def test_a_mask_bars_what_it_leaves_out(dtype: torch.dtype, rows: list[int]) -> None:
    """In its own rows, whatever is not allowed is minus infinity; all else stays."""
    generator = np.random.default_rng(0)
    allowed = generator.random((len(rows), 100)) < 0.3
    padded = np.pad(allowed, ((0, 0), (0, 28)))
    mask = np.packbits(padded, axis=1, bitorder="little").view(np.int32)
    logits = torch.randn(4, 100).to(dtype)
    expected = logits.clone()
    expected[rows] = expected[rows].masked_fill(torch.from_numpy(~allowed), -torch.inf)
    apply_mask(logits, mask, rows=rows)
    assert torch.equal(logits, expected)


def test_a_device_unpacks_a_mask_as_the_host_does() -> None:
    """Words to bits, the lowest first, up to the vocabulary's end."""
    allowed = np.random.default_rng(0).random((3, 128)) < 0.5
    words = torch.from_numpy(np.packbits(allowed, axis=1, bitorder="little").view(np.int32))
    found: Tensor = barred_on_device(words, 100)
    assert torch.equal(found, torch.from_numpy(~allowed[:, :100]))
