# SPDX-License-Identifier: MIT
"""What a rank's weights take: by their sizes, and of the memory of its process.

    python tests/benchmarks/ranks_memory.py [--json] [--tp 1,2] [--layers 8] [--vocab 151936]

A Qwen3 with random weights (16 heads, 8 key and value heads, width 1024) answers one prompt on so
many ranks. `weights` are the bytes of a rank's tensors, `resident` is what its process had then,
and `loaded` is what of that is its own and not there with a model of next to no weights.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
from attrs import asdict, frozen

from tokenspeed_core.assembly import compose
from tokenspeed_core.models.resolve import resolve_model
from tokenspeed_core.ranks.topology import Topology
from tokenspeed_core.testing.small_tokenizer import save_small_tokenizer
from tokenspeed_core.testing.tiny_model import tiny_model
from tokenspeed_core.torch_plane.shard import Shard, ShardedWeights

MIB = 1 << 20
PROMPT = list(range(40))
FIELDS: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "tie_word_embeddings": True,
}
SMALL = {**FIELDS, "hidden_size": 64, "head_dim": 16, "intermediate_size": 96}


@frozen
class Process:
    """A rank's process after an answer, in MiB; `own` is what no file or other process shares."""

    resident: float
    own: float


@frozen
class Rank:
    """One rank of a topology, in MiB."""

    tp: int
    rank: int
    weights: float
    loaded: float
    resident: float


def main() -> int:
    """Measure each topology in processes of its own, and print a line a rank."""
    parser = argparse.ArgumentParser(description="The memory of each rank's weights.")
    parser.add_argument("--json", action="store_true", help="print JSON objects")
    parser.add_argument("--tp", default="1,2", help="how many ranks, one after another (1,2)")
    parser.add_argument("--layers", type=int, default=8, help="layers of the model (8)")
    parser.add_argument("--vocab", type=int, default=151_936, help="tokens it knows (151936)")
    parser.add_argument("--of", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.of:
        print(json.dumps([asdict(each) for each in processes(chosen.of[0], int(chosen.of[1]))]))
        return 0
    sizes = [int(each) for each in chosen.tp.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        big = saved(Path(folder) / "big", num_hidden_layers=chosen.layers, vocab_size=chosen.vocab)
        small = saved(Path(folder) / "small", **SMALL)
        ranks = [rank for tp in sizes for rank in measured(big, small, tp=tp)]
    for rank in ranks:
        print(json.dumps(asdict(rank)) if chosen.json else told(rank))
    if not chosen.json and len(sizes) > 1:
        shares = [max(r.loaded for r in ranks if r.tp == tp) / ranks[0].loaded for tp in sizes]
        print(f"largest rank, of the first's: {', '.join(f'{share:.2f}' for share in shares)}")
    return 0


def saved(folder: Path, **fields: Any) -> Path:
    """Write a model whose tensors are random."""
    model = tiny_model(0, **{**FIELDS, **fields})
    model.save(folder)
    save_small_tokenizer(folder, vocab_size=300)
    return folder


def measured(big: Path, small: Path, *, tp: int) -> Sequence[Rank]:
    """The ranks of one topology, each beside the same rank without weights to speak of."""
    found = []
    pairs = zip(run(big, tp), run(small, tp), shard_sizes(big, tp), strict=True)
    for rank, (with_weights, without, weights) in enumerate(pairs):
        loaded = with_weights.own - without.own
        found.append(Rank(tp, rank, weights, loaded, with_weights.resident))
    return found


def run(model: Path, tp: int) -> list[Process]:
    """Measure in a process that ends with it."""
    command = [sys.executable, __file__, "--of", str(model), str(tp)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [Process(**each) for each in json.loads(output)]


def processes(model: str, tp: int) -> list[Process]:
    """Answer a prompt, and look at the ranks' processes, which are this one and its children."""
    engine = compose(model, tp=tp, dtype="float32", device="cpu", threads=1, num_pages=33)
    with engine:
        engine.generate(PROMPT, max_new_tokens=8, ignore_eos=True)
        this = psutil.Process()
        return [look(each) for each in (this, *sorted(this.children(), key=lambda c: int(c.pid)))]


def look(process: psutil.Process) -> Process:
    """What a process has now."""
    rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    own = next(int(line.split()[1]) for line in rollup if line.startswith("Anonymous:"))
    return Process(process.memory_info().rss / MIB, own / 1024)


def shard_sizes(model: Path, tp: int) -> list[float]:
    """The sizes of each rank's tensors in float32, each counted once."""
    folder, topology = resolve_model(str(model)), Topology(tp=tp)
    whole, sizes = folder.open_weights(), []
    for rank in range(tp):
        cuts = Shard(folder.config, topology, topology.place(rank)).cuts()
        shapes = ShardedWeights(whole, cuts).shapes.values()
        sizes.append(sum(4 * math.prod(shape) for shape in shapes) / MIB)
    return sizes


def told(rank: Rank) -> str:
    """One line for a person."""
    return (
        f"tp {rank.tp} rank {rank.rank}: weights {rank.weights:7.1f} MiB, loaded "
        f"{rank.loaded:7.1f} MiB, resident {rank.resident:7.1f} MiB"
    )


if __name__ == "__main__":
    sys.exit(main())
