# SPDX-License-Identifier: MIT
"""What lives on the plane's thread, made there from the setup, and taken down at the end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import torch
from attrs import frozen

from tokenspeed_core.errors import EngineError
from tokenspeed_core.torch_plane.batch_inputs import LastTokens
from tokenspeed_core.torch_plane.cache_pools import CachePools
from tokenspeed_core.torch_plane.decoder import Decoder
from tokenspeed_core.torch_plane.decoder_part import DecoderPart
from tokenspeed_core.torch_plane.device import Device
from tokenspeed_core.torch_plane.device_ranks import DeviceRanks, device_ranks
from tokenspeed_core.torch_plane.extensions import Extensions
from tokenspeed_core.torch_plane.host_memory import keep_freed_memory
from tokenspeed_core.torch_plane.host_pages import TorchHostPages
from tokenspeed_core.torch_plane.memory import Memory
from tokenspeed_core.torch_plane.operations import Operations
from tokenspeed_core.torch_plane.plane_setup import GROUP, PlaneSetup
from tokenspeed_core.torch_plane.plane_thread import PlaneThread
from tokenspeed_core.torch_plane.profiler import Profiler
from tokenspeed_core.torch_plane.runner import Runner
from tokenspeed_core.torch_plane.sampler import Sampler
from tokenspeed_core.torch_plane.seated import Seats
from tokenspeed_core.torch_plane.update_groups import UpdateGroups
from tokenspeed_core.torch_plane.weight_updates import WeightUpdates
from tokenspeed_core.torch_plane.weights_aside import WeightsAside
from tokenspeed_hookspecs import DataPlaneExtension


@frozen(eq=False)
class Built:
    """The model with its requests, and the two that act on it between forwards."""

    runner: Runner
    memory: Memory
    operations: Operations
    host_pages: TorchHostPages | None

    def close(self, thread: PlaneThread) -> None:
        """Write a trace that is being recorded, leave the groups, remove what was put aside."""
        operations = self.operations
        # A plane that failed answers nothing any more; what it held ends with the process.
        with suppress(EngineError):
            if operations.profiler.is_busy:
                thread.call(operations.profiler.stop)
            operations.groups.leave_all()
        operations.aside.forget()


def build(setup: PlaneSetup, extensions: Sequence[DataPlaneExtension]) -> Built:
    """Load the model; runs on the plane's thread, which alone touches it from then on."""
    if setup.threads is not None:
        torch.set_num_threads(setup.threads)
    elif setup.seat is not None and setup.seat.local_size > 1:
        # Threads that wait spin, and would keep the other ranks' from the cores.
        share = torch.get_num_threads() // setup.seat.local_size
        torch.set_num_threads(max(1, share))
    if setup.device.type == "cpu":
        keep_freed_memory()
    device = Device(setup.device)
    device.enter()
    setup.progress.start("loading the weights")
    ranks = device_ranks(setup.seat, setup.device)
    decoder = setup.make_decoder(
        setup.shard.config,
        setup.open_weights(),
        dtype=setup.dtype,
        device=setup.device,
        part=_part(setup, ranks),
    )
    setup.progress.finish()
    bound = Extensions(extensions)
    bound.build_model(decoder)
    runner = _runner(setup, decoder, device=device, extensions=bound)
    aside = WeightsAside(setup.open_weights)
    rank = 0 if setup.seat is None else setup.seat.rank
    groups = UpdateGroups(setup.device, rank=rank)
    operations = Operations(
        runner=runner,
        profiler=runner.profiler,
        updates=WeightUpdates(
            setup.shard, decoder.weights, groups=groups, reads_ahead=setup.seat is not None
        ),
        groups=groups,
        aside=aside,
    )
    host = runner.pools.host
    pages = None if host is None else TorchHostPages(setup, host)
    return Built(runner, Memory(runner, aside), operations, pages)


def _part(setup: PlaneSetup, ranks: DeviceRanks) -> DecoderPart:
    shard = setup.shard
    return DecoderPart(
        first_layer=shard.layers.start,
        is_first=shard.is_first,
        is_last=shard.is_last,
        splits_vocab=shard.splits_vocab,
        first_token=shard.first_token,
        max_positions=setup.info.max_model_len,
        positions=ranks.positions,
        stages=ranks.stages,
    )


def _runner(
    setup: PlaneSetup, decoder: Decoder, *, device: Device, extensions: Extensions
) -> Runner:
    shape = setup.model.config
    num_slots = setup.sizes.max_batch_size + 1  # slot 0 is never given out
    return Runner(
        device=device,
        decoder=decoder,
        part=decoder.part,
        pools=_pools(setup),
        seats=Seats(num_slots, vocab_size=shape.vocab_size, eos_token_ids=shape.eos_token_ids),
        sampler=Sampler(
            shape.vocab_size,
            longest=shape.max_position_embeddings + 1,
            device=setup.device,
        ),
        last=LastTokens(num_slots, setup.device),
        extensions=extensions,
        profiler=Profiler(setup.traces, device=setup.device),
    )


def _pools(setup: PlaneSetup) -> CachePools:
    sizes = setup.sizes
    return CachePools(
        GROUP,
        setup.pool(sizes.num_pages, setup.device),
        snapshots=setup.pool(sizes.snapshot_pages, setup.device)
        if sizes.snapshot_pages > 1
        else None,
        host=setup.host_pool,
    )
