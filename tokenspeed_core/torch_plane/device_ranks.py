# SPDX-License-Identifier: MIT
"""The tensors that ranks exchange in a forward: gloo on the CPU, NCCL on CUDA.

The groups are objects of this plane and not torch's process-wide default one, so that several
engines, and in tests several ranks, live in one process.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from datetime import timedelta
from functools import reduce
from typing import Any

import torch
from attrs import define, field
from torch import Tensor
from torch._C._distributed_c10d import BroadcastOptions, PrefixStore, ProcessGroupGloo

from tokenspeed_core.errors import EngineError
from tokenspeed_core.ranks.device_seat import DeviceSeat

HIDDEN, TOKENS = 1, 2
# A rank that computes is silent meanwhile; the control mesh notices one that is gone long before.
TIMEOUT = timedelta(minutes=10)
# A stage leaves at most as many forwards' tokens untaken as there are stages.
SENDS_A_PAIR = 8


@define(eq=False)
class Positions:
    """The ranks that share a stage's tensors."""

    group: Any  # boundary: torch's groups have no public type
    size: int

    def sum_(self, x: Tensor) -> Tensor:
        """The sum over the ranks, in place; on the CPU half precision is added up in float32."""
        if x.device.type != "cpu":
            self.group.allreduce([x]).wait()
            return x
        wide = x.float()
        if self.size > 2:
            # gloo adds up more than two in an order that depends on how many rows there are.
            wide = reduce(torch.add, self._parts(wide.contiguous()))
        else:
            self.group.allreduce([wide]).wait()
        return x if wide is x else x.copy_(wide)

    def joined(self, part: Tensor) -> Tensor:
        """Every rank's part [n, width], side by side in rank order."""
        return torch.cat(self._parts(part.contiguous()), dim=-1)

    def first(self, x: Tensor) -> Tensor:
        """The first rank's x, on every rank: what was sampled must not differ in a bit."""
        return _broadcast(self.group, x.contiguous(), root=0)

    def _parts(self, part: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(part) for _ in range(self.size)]
        self.group.allgather([parts], [part]).wait()
        return parts


@define(eq=False)
class Stages:
    """The ranks of one position, a pipeline stage each; hidden states go up, tokens come back.

    A stage that does not sample feeds the next forward's decode rows with tokens of the last stage,
    which it takes only then: so several prompt chunks may be on their way at once.
    """

    group: Any
    index: int
    size: int
    _expected: deque[Tensor] = field(factory=deque, init=False)
    _sending: deque[tuple[Any, Tensor]] = field(factory=deque, init=False)

    def connect(self, device: torch.device) -> None:
        """Send a token along every way that tokens take.

        NCCL connects two ranks at their first exchange, and both wait for the other there. In a
        forward the last stage would wait for one that comes only once this forward's tokens did.
        """
        token = torch.zeros(1, dtype=torch.int64, device=device)
        if self.index == self.size - 1:
            self.share_tokens(token)
        else:
            self.group.recv([token], self.size - 1, TOKENS).wait()

    def receive_hidden(self, like: Tensor) -> Tensor:
        """The hidden states of the stage before, written into `like`."""
        self.group.recv([like], self.index - 1, HIDDEN).wait()
        return like

    def send_hidden(self, x: Tensor) -> None:
        """Hand hidden states to the next stage."""
        self._send(x.contiguous(), to=self.index + 1, tag=HIDDEN)

    def share_tokens(self, tokens: Tensor) -> None:
        """Give every earlier stage what was sampled."""
        for stage in range(self.size - 1):
            self._send(tokens, to=stage, tag=TOKENS)

    def expect_tokens(self, slots: Tensor) -> None:
        """Remember that a forward's tokens will come."""
        self._expected.append(slots)

    def take_tokens(self, *, keep: int) -> Sequence[tuple[Tensor, Tensor]]:
        """Slots and tokens of the forwards whose tokens were not taken yet, but for the last ones:
        waiting for these would empty the pipeline."""
        taken = []
        while len(self._expected) > keep:
            slots = self._expected.popleft()
            tokens = torch.empty_like(slots)
            self.group.recv([tokens], self.size - 1, TOKENS).wait()
            taken.append((slots, tokens))
        return taken

    def _send(self, x: Tensor, *, to: int, tag: int) -> None:
        """Without waiting for it; only for what was sent long before, which has been taken."""
        self._sending.append((self.group.send([x], to, tag), x))
        while len(self._sending) > SENDS_A_PAIR * self.size:
            self._sending.popleft()[0].wait()


@define(eq=False)
class DeviceRanks:
    """The groups of one plane; those of one rank are absent."""

    positions: Positions | None = None
    stages: Stages | None = None

    def close(self) -> None:
        """Let go of the connections."""
        self.positions = self.stages = None


def device_ranks(seat: DeviceSeat | None, device: torch.device) -> DeviceRanks:
    """Meet the other planes; EngineError if one does not come."""
    if seat is None:
        return DeviceRanks()
    topology, place = seat.topology, seat.place
    found = DeviceRanks()
    try:
        if topology.tp > 1:
            members = topology.positions(seat.rank)
            found.positions = Positions(_group(seat, members, device=device), len(members))
        stages = topology.stages(seat.rank)
        if stages is not None:
            group = _group(seat, stages, device=device)
            found.stages = Stages(group, place.stage, len(stages))
            found.stages.connect(device)
    except RuntimeError as error:
        raise EngineError(
            f"rank {seat.rank}'s data plane did not meet the others: {error}"
        ) from error
    return found


def _group(seat: DeviceSeat, members: Sequence[int], *, device: torch.device) -> Any:
    name = "device/" + "-".join(map(str, members))
    store, index = PrefixStore(name, seat.store), members.index(seat.rank)
    if device.type == "cuda":
        from torch._C._distributed_c10d import ProcessGroupNCCL

        return ProcessGroupNCCL(store, index, len(members), ProcessGroupNCCL.Options())
    gloo: Any = ProcessGroupGloo  # its options are not in the stubs
    options = gloo._Options()
    # By itself gloo listens wherever the host's name leads.
    options._devices = [gloo.create_device(hostname=seat.host)]
    options._timeout = TIMEOUT
    return gloo(store, index, len(members), options)


def _broadcast(group: Any, x: Tensor, *, root: int) -> Tensor:
    options = BroadcastOptions()
    options.rootRank = root
    group.broadcast([x], options).wait()
    return x
