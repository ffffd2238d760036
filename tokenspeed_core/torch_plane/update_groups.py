# SPDX-License-Identifier: MIT
"""Process groups over which a trainer, their rank 0, sends new weights.

They are made the way trainers make theirs (a store at the master's address, its keys under the
group's name), and next to whatever else in this process uses torch.distributed: no default group
is made or needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from attrs import frozen
from torch import Tensor
from torch import distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.rendezvous import rendezvous

from tokenspeed_core.torch_plane.refusal import RefusedError

SENDER = 0
JOIN_TIMEOUT = timedelta(seconds=60)


@frozen(kw_only=True)
class GroupAddress:
    """Where a group meets. `rank_offset` is the first rank's place in it, behind the trainer's; the
    others follow in their order."""

    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    group_name: str = "weight_update_group"
    backend: str = "nccl"


class UpdateGroups:
    """The groups this process is in, by name. Joining and receiving wait for the others, at most
    `timeout`."""

    def __init__(
        self, device: torch.device, *, rank: int = 0, timeout: timedelta = JOIN_TIMEOUT
    ) -> None:
        self._device = device
        self._own_rank = rank
        self._timeout = timeout
        # boundary: torch.distributed's groups have no public type for a single one
        self._groups: dict[str, Any] = {}

    def join(self, address: GroupAddress) -> None:
        """Meet the others."""
        if address.group_name in self._groups:
            raise RefusedError(
                f"group {address.group_name!r} is there already; destroy it before making it anew"
            )
        self._check(address)
        try:
            self._groups[address.group_name] = self._meet(address)
        except (RuntimeError, ValueError, OSError) as error:
            raise RefusedError(
                f"could not join group {address.group_name!r} at {address.master_address}:"
                f"{address.master_port} as rank {address.rank_offset} of {address.world_size} "
                f"within {self._timeout}: {first_line(error)}"
            ) from error

    def check(self, name: str) -> None:
        """RefusedError: there is no such group."""
        self._group(name)

    def leave(self, name: str) -> None:
        """Forget a group."""
        dist.destroy_process_group(self._group(name))
        del self._groups[name]

    def receive(
        self, name: str, shapes: Sequence[tuple[int, ...]], *, dtypes: Sequence[torch.dtype]
    ) -> list[Tensor]:
        """The tensors the sender broadcasts next, in that order."""
        group = self._group(name)
        received = []
        try:
            for shape, dtype in zip(shapes, dtypes, strict=True):
                tensor = torch.empty(shape, dtype=dtype, device=self._device)
                group.broadcast(tensor, SENDER).wait()
                received.append(tensor)
            if self._device.type == "cuda":
                # Waiting for NCCL only orders the stream; who is answered may change what it sent.
                torch.cuda.current_stream(self._device).synchronize()
        except RuntimeError as error:
            raise RefusedError(
                f"group {name!r} broke after {len(received)} of {len(shapes)} tensors "
                f"({first_line(error)}); destroy it and make it anew"
            ) from error
        return received

    def leave_all(self) -> None:
        """Forget every group."""
        for name in list(self._groups):
            self.leave(name)

    def _group(self, name: str) -> Any:
        if name not in self._groups:
            known = ", ".join(self._groups) or "none"
            raise RefusedError(f"no group {name!r} was made here; there are: {known}")
        return self._groups[name]

    def _check(self, address: GroupAddress) -> None:
        if not dist.is_available() or not dist.is_backend_available(address.backend):
            raise RefusedError(f"this torch has no backend {address.backend!r}; use gloo")
        if address.backend == "nccl" and self._device.type != "cuda":
            raise RefusedError(f"backend nccl: this plane runs on {self._device}; use gloo")
        last = address.world_size - 1 - self._own_rank
        if not SENDER < address.rank_offset <= last:
            raise RefusedError(
                f"rank_offset: expected 1 to {last}, behind the sender and so that rank "
                f"{self._own_rank} is below world_size {address.world_size}, got "
                f"{address.rank_offset}"
            )

    def _meet(self, address: GroupAddress) -> Any:
        rank, size = address.rank_offset + self._own_rank, address.world_size
        place = f"tcp://{address.master_address}:{address.master_port}"
        store, _, _ = next(rendezvous(place, rank, size, timeout=self._timeout))
        store.set_timeout(self._timeout)
        group, _ = c10d._new_process_group_helper(
            size,
            rank,
            [],
            c10d.Backend(address.backend),
            c10d.PrefixStore(address.group_name, store),
            group_name=c10d.GroupName(address.group_name),
            timeout=self._timeout,
        )
        # Without it the group cannot be destroyed: nobody else tells torch who is in it.
        c10d._world.pg_group_ranks[group] = {number: number for number in range(size)}
        return group


def first_line(error: BaseException) -> str:
    """An error's message without what torch adds below it."""
    return str(error).partition("\n")[0]
