# SPDX-License-Identifier: MIT
"""The data plane that runs a model with torch: the loop's side of it.

What the loop asks is posted to one thread and runs there in that order; only `complete`, `call`,
`start` and `stop` wait. Whatever fails there is raised by the next call, whichever that is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import torch

from tokenspeed_core.config import EngineConfig
from tokenspeed_core.errors import EngineError
from tokenspeed_core.torch_plane.batch_inputs import LastTokens
from tokenspeed_core.torch_plane.cache_pools import CachePools
from tokenspeed_core.torch_plane.device import Device
from tokenspeed_core.torch_plane.extensions import Extensions
from tokenspeed_core.torch_plane.host_memory import keep_freed_memory
from tokenspeed_core.torch_plane.plane_setup import GROUP, PlaneSetup, prepare
from tokenspeed_core.torch_plane.plane_thread import PlaneThread, Task
from tokenspeed_core.torch_plane.results import Outputs, TorchForward
from tokenspeed_core.torch_plane.runner import Done, Runner
from tokenspeed_core.torch_plane.sampler import Sampler
from tokenspeed_core.torch_plane.seated import Seats
from tokenspeed_hookspecs import (
    AdmittedRequest,
    CacheAcknowledgment,
    CacheGroup,
    DataPlaneExtension,
    Dispatch,
    ForwardResult,
    ModelInfo,
    PendingForward,
    Plan,
)

T = TypeVar("T")
# As long as the loop waits for messages when it is idle.
OPERATION_WAIT_S = 0.010


class TorchDataPlane:
    """One rank's model on one device.

    Making one finds the model and checks every size, so that what does not fit is known before
    anything runs; `start` loads the weights. `plane_setup.prepare` says which options there are.
    """

    kind = "torch"

    def __init__(self, config: EngineConfig, options: Mapping[str, Any]) -> None:
        self._setup = prepare(config, options)
        self._thread: PlaneThread | None = None
        self._runner: Runner | None = None
        self._done: deque[Done] = deque()
        self._num_in_flight = 0
        self._operations: Task[Outputs | None] | None = None

    @property
    def model(self) -> ModelInfo:
        """What the rest of the engine needs to know of the model."""
        return self._setup.info

    @property
    def cache_groups(self) -> Sequence[CacheGroup]:
        """The one group of pages."""
        return (self._setup.group,)

    def start(self, extensions: Sequence[DataPlaneExtension]) -> None:
        """Start the thread and load the model on it; ModelError if the weights are no good."""
        assert self._thread is None, "a plane starts once"
        self._thread = PlaneThread()
        try:
            runner = self._thread.call(lambda: _build(self._setup, extensions))
        except BaseException:
            self.stop()
            raise
        self._runner, self._done = runner, runner.done

    def stop(self) -> None:
        """End the thread and let go of the model and its pages."""
        if self._thread is not None:
            self._thread.stop()
        self._runner = None
        self._done.clear()
        if self._setup.device.type == "cuda":
            torch.cuda.empty_cache()

    def admit(self, requests: Sequence[AdmittedRequest]) -> None:
        """Tell the thread of requests."""
        thread, runner = self._started()
        # The caller's list may change before the thread reads it.
        mine = tuple(requests)
        thread.post(lambda: runner.admit(mine))

    def execute(self, plan: Plan, dispatch: Dispatch) -> TorchForward | None:
        """Post a plan; the forward to complete, if it has a batch."""
        thread, runner = self._started()
        task = thread.post(lambda: runner.run(plan, dispatch))
        if plan.operations:
            self._operations = task
        if plan.batch is None:
            return None
        self._num_in_flight += 1
        return TorchForward(task, plan.batch)

    def complete(self, pending: PendingForward) -> ForwardResult:
        """Wait for a forward and return its result."""
        assert isinstance(pending, TorchForward), "a plane completes what it executed"
        thread, runner = self._started()
        outputs = thread.result(pending.task)
        self._num_in_flight -= 1
        assert outputs is not None, "only a plan with a batch gives a forward"
        result = outputs.result()
        result.endings = runner.extensions.endings(pending.batch)
        return result

    def poll_cache_operations(self) -> Sequence[CacheAcknowledgment]:
        """The operations whose bytes are in place since the last call.

        While forwards are in flight it never waits. Without any the loop could only ask again at
        once, and so keep the interpreter from the very thread it asks: that gets a moment first.
        """
        self._started()
        asked = self._operations
        if asked is not None and not self._num_in_flight and asked.wait(OPERATION_WAIT_S):
            self._operations = None
        found: list[CacheAcknowledgment] = []
        while self._done and self._done[0][0].is_reached:
            found += self._done.popleft()[1]
        return found

    def release(self, request_ids: Sequence[str]) -> None:
        """Tell the thread that requests ended."""
        thread, runner = self._started()
        mine = tuple(request_ids)
        thread.post(lambda: runner.release(mine))

    def call(self, function: Callable[[], T]) -> T:
        """Run a function on the thread; what it raises is raised here and ends nothing else."""
        return self._started()[0].call(function)

    def num_known_requests(self) -> int:
        """Requests of which the plane keeps something; for `call`."""
        return self._started()[1].num_known_requests

    def _started(self) -> tuple[PlaneThread, Runner]:
        if self._thread is None:
            raise EngineError("the data plane was used before it was started")
        self._thread.check()
        assert self._runner is not None, "a thread that was not stopped has its model"
        return self._thread, self._runner


def _build(setup: PlaneSetup, extensions: Sequence[DataPlaneExtension]) -> Runner:
    """Load the model; runs on the plane's thread, which alone touches it from then on."""
    if setup.threads is not None:
        torch.set_num_threads(setup.threads)
    if setup.device.type == "cpu":
        keep_freed_memory()
    device = Device(setup.device)
    device.enter()
    shape, sizes = setup.model.config, setup.sizes
    setup.progress.start("loading the weights")
    decoder = setup.make_decoder(
        shape,
        setup.model.open_weights(),
        dtype=setup.dtype,
        device=setup.device,
        max_positions=setup.info.max_model_len,
    )
    setup.progress.finish()
    bound = Extensions(extensions)
    bound.build_model(decoder)
    num_slots = sizes.max_batch_size + 1  # slot 0 is never given out
    return Runner(
        device=device,
        decoder=decoder,
        pools=_pools(setup),
        seats=Seats(num_slots, vocab_size=shape.vocab_size, eos_token_ids=shape.eos_token_ids),
        sampler=Sampler(
            shape.vocab_size,
            longest=shape.max_position_embeddings + 1,
            device=setup.device,
        ),
        last=LastTokens(num_slots, setup.device),
        extensions=bound,
    )


def _pools(setup: PlaneSetup) -> CachePools:
    sizes, host = setup.sizes, torch.device("cpu")
    return CachePools(
        GROUP,
        setup.pool(sizes.num_pages, setup.device),
        snapshots=setup.pool(sizes.snapshot_pages, setup.device)
        if sizes.snapshot_pages > 1
        else None,
        host=setup.pool(sizes.host_pages, host) if sizes.host_pages > 0 else None,
    )
