# SPDX-License-Identifier: MIT
"""One rank's part of a model: some of its layers, and a slice of each layer's tensors.

Query heads, feed-forward columns and, where they divide, the vocabulary's rows (of the embedding as
of the head) are split over the tensor parallel positions; key and value heads too, or repeated
where there are fewer of them than ranks. A product that is split by its inputs is a sum over the
ranks; its bias is added by the first alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from attrs import evolve, frozen
from torch import Tensor

from tokenspeed_core.models.config import ModelConfig
from tokenspeed_core.models.expected_weights import LAYER, Shape, expected_weights
from tokenspeed_core.models.weights import WeightSource
from tokenspeed_core.ranks.topology import Place, Topology

EMBEDDING, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
QUERIES = re.compile(r"self_attn\.q_proj")
KEYS = re.compile(r"self_attn\.[kv]_proj")
COLUMNS = re.compile(r"mlp\.(gate|up)_proj")
ROWS = re.compile(r"(self_attn\.o_proj|mlp\.down_proj)\.weight")
SUMMED_BIAS = re.compile(r"(self_attn\.o_proj|mlp\.down_proj)\.bias")


@frozen
class Cut:
    """A slice of a whole tensor; `is_zero` where another rank adds it."""

    name: str
    dim: int = 0
    start: int = 0
    stop: int | None = None
    is_zero: bool = False

    def of(self, whole: Tensor) -> Tensor:
        """This rank's part of the whole tensor."""
        if self.is_zero:
            return whole.new_zeros(whole.shape)
        stop = whole.shape[self.dim] if self.stop is None else self.stop
        return whole.narrow(self.dim, self.start, stop - self.start)

    def shape(self, whole: Shape) -> Shape:
        """The shape of the part."""
        stop = whole[self.dim] if self.stop is None else self.stop
        return (*whole[: self.dim], stop - self.start, *whole[self.dim + 1 :])


@frozen
class Shard:
    """Where a rank stands in a topology, and what that leaves of a model of shape `whole`."""

    whole: ModelConfig
    topology: Topology
    place: Place

    @property
    def is_first(self) -> bool:
        """Whether it is fed tokens."""
        return self.place.stage == 0

    @property
    def is_last(self) -> bool:
        """Whether it samples."""
        return self.place.stage == self.topology.pp - 1

    @property
    def layers(self) -> range:
        """The layers of its stage; the first stages have one more where they do not divide."""
        each, more = divmod(self.whole.num_layers, self.topology.pp)
        stage = self.place.stage
        start = stage * each + min(stage, more)
        return range(start, start + each + (stage < more))

    @property
    def splits_vocab(self) -> bool:
        """Whether its embedding and its logits are a part of the vocabulary."""
        return self.topology.tp > 1 and self.whole.vocab_size % self.topology.tp == 0

    @property
    def config(self) -> ModelConfig:
        """The shape of its part."""
        tp = self.topology.tp
        return evolve(
            self.whole,
            num_layers=len(self.layers),
            num_heads=self.whole.num_heads // tp,
            num_kv_heads=max(1, self.whole.num_kv_heads // tp),
            intermediate_size=self.whole.intermediate_size // tp,
        )

    @property
    def first_token(self) -> int:
        """The token of the first row of its embedding."""
        each = self.whole.vocab_size // self.topology.tp
        return self.place.position * each if self.splits_vocab else 0

    def problems(self) -> list[str]:
        """What about the model does not divide by the topology."""
        tp, pp, whole = self.topology.tp, self.topology.pp, self.whole
        found = []
        if self.topology.ep > 1:
            found.append(f"engine.ep: the model has no experts to spread over {self.topology.ep}")
        if pp > whole.num_layers:
            found.append(f"engine.pp: {pp} stages are more than the model's {whole.num_layers}")
        for name, count in (
            ("attention heads", whole.num_heads),
            ("feed-forward columns", whole.intermediate_size),
        ):
            if count % tp:
                found.append(f"engine.tp: the model's {count} {name} do not divide by {tp}")
        keys = whole.num_kv_heads
        if keys % tp and tp % keys:
            found.append(
                f"engine.tp: the model's {keys} key and value heads can neither be split over "
                f"{tp} ranks nor repeated evenly"
            )
        return found

    def cuts(self) -> dict[str, Cut]:
        """What this rank loads, by the name it is used under."""
        cuts = {}
        for name in expected_weights(self.whole):
            match = LAYER.match(name)
            if match is None:
                continue
            if int(match[1]) in self.layers:
                cuts[name] = self._layer_cut(name)
        if self.is_first or (self.is_last and self.whole.tie_word_embeddings):
            cuts[EMBEDDING] = self._vocab_cut(EMBEDDING)
        if self.is_last:
            cuts[NORM] = Cut(NORM)
        if self.is_last and not self.whole.tie_word_embeddings:
            cuts[HEAD] = self._vocab_cut(HEAD)
        return cuts

    def _vocab_cut(self, name: str) -> Cut:
        return self._part(name, self.whole.vocab_size) if self.splits_vocab else Cut(name)

    def _layer_cut(self, name: str) -> Cut:
        whole, dim = self.whole, self.whole.head_dim
        if QUERIES.search(name):
            return self._part(name, whole.num_heads * dim)
        if KEYS.search(name):
            return self._key_cut(name)
        if COLUMNS.search(name):
            return self._part(name, whole.intermediate_size)
        if ROWS.search(name):
            is_attention = "self_attn" in name
            size = whole.num_heads * dim if is_attention else whole.intermediate_size
            return evolve(self._part(name, size), dim=1)
        if SUMMED_BIAS.search(name):
            return Cut(name, is_zero=self.place.position > 0)
        return Cut(name)

    def _key_cut(self, name: str) -> Cut:
        keys, dim, tp = self.whole.num_kv_heads, self.whole.head_dim, self.topology.tp
        if keys >= tp:
            return self._part(name, keys * dim)
        head = self.place.position * keys // tp
        return Cut(name, 0, head * dim, (head + 1) * dim)

    def _part(self, name: str, size: int) -> Cut:
        each = size // self.topology.tp
        return Cut(name, 0, self.place.position * each, (self.place.position + 1) * each)


@frozen
class ShardedWeights:
    """A whole model's weights as one rank sees them: its names, each with its part."""

    whole: WeightSource
    cuts: Mapping[str, Cut]

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """The shapes of the parts."""
        return {name: cut.shape(self.whole.shapes[cut.name]) for name, cut in self.cuts.items()}

    def load(self, name: str) -> Tensor:
        """The part; of a file that is mapped, only its own pages are read."""
        cut = self.cuts[name]
        return cut.of(self.whole.load(cut.name))


def parts_of(tensors: Mapping[str, Tensor], cuts: Mapping[str, Cut]) -> dict[str, Tensor]:
    """This rank's parts of whole tensors, by the names it uses them under."""
    return dict(_parts(tensors, cuts))


def _parts(tensors: Mapping[str, Tensor], cuts: Mapping[str, Cut]) -> Iterator[tuple[str, Tensor]]:
    for name, cut in cuts.items():
        if cut.name in tensors:
            yield name, cut.of(tensors[cut.name])
