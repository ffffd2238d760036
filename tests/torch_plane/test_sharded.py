# SPDX-License-Identifier: MIT
"""A model over several ranks says what it says on one."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from tokenspeed_core.errors import ConfigError
from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.testing import request
from tokenspeed_core.testing.tiny_model import TinyModel, tiny_model
from tokenspeed_core.testing.torch_engine import TorchEngine, TorchSetup
from tokenspeed_core.testing.torch_world import TorchWorld
from tokenspeed_core.torch_plane import decoder
from tokenspeed_core.torch_plane.linear import FEWEST_ROWS, PlainLinear, Products
from tokenspeed_core.torch_plane.shard import Shard, ShardedWeights
from tokenspeed_hookspecs import AddRequest, LogprobOptions

QWEN3: Mapping[str, object] = {
    "architectures": ["Qwen3ForCausalLM"],
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
BIASED: Mapping[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": True,
    "mlp_bias": True,
    "num_key_value_heads": 1,
    "vocab_size": 301,
}
TOPOLOGIES = [Topology(tp=2), Topology(pp=2), Topology(tp=2, pp=2), Topology(dp=2)]


def requests() -> list[AddRequest]:
    """Prompts with a common beginning, some of several chunks, some sampled."""
    common = [(7 * i) % 290 for i in range(40)]
    return [
        request("short", [5, 6, 7], budget=12),
        request("long", [*common, *range(60, 130)], budget=12),
        request("again", [*common, *range(200, 260)], budget=12),
        request("warm", range(30, 50), budget=12, temperature=0.8, seed=3, repetition_penalty=1.2),
    ]


def tokens(engine: TorchEngine | TorchWorld, batch: Sequence[AddRequest]) -> list[list[int]]:
    """What each request was given."""
    return [stream.tokens for stream in engine.generate(batch)]


def setup(model: TinyModel, depth: int, **scheduler: Any) -> TorchSetup:
    """A small engine with several chunks a prompt."""
    options = {"max_scheduled_tokens": 32, **scheduler}
    return TorchSetup(model=model, depth=depth, scheduler=options)


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
@pytest.mark.parametrize("fields", [QWEN3, BIASED], ids=["qwen3", "biased"])
def test_tokens_are_those_of_one_rank(
    fields: Mapping[str, object], topology: Topology, depth: int
) -> None:
    """Over chunks, prefix hits and sampling, at every depth."""
    model = tiny_model(3, **fields)
    with TorchEngine(setup(model, depth)) as one:
        expected = [tokens(one, requests()) for _ in range(2)]
    with TorchWorld(topology, setup(model, depth)) as world:
        assert [tokens(world, requests()) for _ in range(2)] == expected


@pytest.mark.parametrize("first", [1, FEWEST_ROWS])
@pytest.mark.parametrize("topology", [Topology(tp=2), Topology(pp=2)], ids=str)
def test_ranks_on_unlike_processors_exchange_the_same_rows(
    monkeypatch: pytest.MonkeyPatch, topology: Topology, first: int
) -> None:
    """Whatever each one's products need, decode steps of a row or two pass between them."""
    needs = itertools.cycle([first, 1 + FEWEST_ROWS - first])

    def unlike(_dtype: torch.dtype, _device: torch.device) -> Products:
        return Products(make=PlainLinear, fewest_rows=next(needs), keeps_layout=True)

    model = tiny_model(3, **QWEN3)
    with TorchEngine(setup(model, 1)) as one:
        expected = tokens(one, requests()[:2])
    monkeypatch.setattr(decoder, "products", unlike)
    with TorchWorld(topology, setup(model, 1)) as world:
        assert tokens(world, requests()[:2]) == expected


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
def test_retracted_requests_go_on_alike(topology: Topology) -> None:
    """Each rank saves and restores its own part of a request's pages."""
    model = tiny_model(3, **QWEN3)
    pool = {"num_pages": 40, "snapshot_pages": 65, "max_retracted": 4}
    small = setup(model, 1, force_retraction_every=3, **pool)
    with TorchEngine(small) as one:
        expected = tokens(one, requests())
    with TorchWorld(topology, small) as world:
        assert tokens(world, requests()) == expected


@pytest.mark.parametrize("topology", TOPOLOGIES, ids=str)
def test_scores_reach_the_first_rank(topology: Topology) -> None:
    """Logprobs of the last stage's whole vocabulary, wherever the frontend is."""
    model = tiny_model(3, **QWEN3)
    wanted = LogprobOptions(start=4, top=2)
    batch = [request("scored", range(20, 90), budget=3, logprobs=wanted)]
    with TorchEngine(setup(model, 1)) as one:
        (expected,) = one.generate(batch)
    with TorchWorld(topology, setup(model, 1)) as world:
        (found,) = world.generate(batch)
    assert found.tokens == expected.tokens
    assert found.logprobs == pytest.approx(expected.logprobs, abs=1e-4)
    prompts = [
        [chunk.details.prompt for chunk in stream.chunks if chunk.details and chunk.details.prompt]
        for stream in (found, expected)
    ]
    assert prompts[0][0].values[1:] == pytest.approx(prompts[1][0].values[1:], abs=1e-4)
    assert prompts[0][0].alternatives is not None


def test_new_weights_reach_every_part(tmp_path: Any) -> None:
    """From disk each rank loads its part; then the tokens are the new model's."""
    old, new = tiny_model(3, **QWEN3), tiny_model(4, **QWEN3)
    path = new.save(tmp_path / "new")
    with TorchEngine(setup(new, 1)) as one:
        expected = tokens(one, requests())
    with TorchWorld(Topology(tp=2, pp=2), setup(old, 1)) as world:
        assert world.ask("update_weights_from_disk", model_path=path).success
        assert tokens(world, requests()) == expected


def test_memory_comes_back_as_it_was() -> None:
    """Released and resumed, each part has its own slice again."""
    model = tiny_model(3, **QWEN3)
    with TorchWorld(Topology(tp=2), setup(model, 1)) as world:
        before = tokens(world, requests())
        assert world.ask("release_memory").success
        assert world.ask("resume_memory").success
        assert tokens(world, requests()) == before


def test_two_positions_hold_half_of_the_split_tensors_each() -> None:
    """Together the parts are the whole, and no product is in both."""
    model = tiny_model(3, **QWEN3)
    parts = [
        ShardedWeights(model.weights, Shard(model.config, Topology(tp=2), place).cuts())
        for place in map(Topology(tp=2).place, (0, 1))
    ]
    name = "model.layers.1.mlp.down_proj.weight"
    joined = torch.cat([part.load(name) for part in parts], dim=1)
    assert torch.equal(joined, model.weights.load(name))
    table = torch.cat([part.load("model.embed_tokens.weight") for part in parts])
    assert torch.equal(table, model.weights.load("model.embed_tokens.weight"))
    assert parts[0].shapes["model.layers.0.self_attn.q_proj.weight"] == (32, 64)


@pytest.mark.parametrize(
    ("topology", "fields", "says"),
    [
        (Topology(tp=3), {}, "engine.tp: the model's 4 attention heads do not divide by 3"),
        (Topology(tp=2, ep=2), {}, "engine.ep: the model has no experts to spread over 2"),
        (Topology(pp=3), {}, "engine.pp: 3 stages are more than the model's 2"),
        (
            Topology(tp=4),
            {"num_attention_heads": 12, "num_key_value_heads": 3, "hidden_size": 192},
            "3 key and value heads can neither be split over 4 ranks nor repeated evenly",
        ),
    ],
)
def test_a_model_that_does_not_divide_is_refused(
    topology: Topology, fields: Mapping[str, Any], says: str
) -> None:
    """Before anything is loaded, with the option and the number."""
    setup = TorchSetup(model=tiny_model(**fields))
    with pytest.raises(ConfigError) as raised, TorchWorld(topology, setup):
        pass
    assert any(says in problem for problem in raised.value.problems)
