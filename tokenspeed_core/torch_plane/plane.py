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
from tokenspeed_core.ranks.device_seat import DeviceSeat
from tokenspeed_core.torch_plane.memory import REGIONS
from tokenspeed_core.torch_plane.plane_build import Built, build
from tokenspeed_core.torch_plane.plane_setup import prepare
from tokenspeed_core.torch_plane.plane_thread import PlaneThread, Task
from tokenspeed_core.torch_plane.results import Outputs, TorchForward
from tokenspeed_core.torch_plane.runner import Done, Runner
from tokenspeed_hookspecs import (
    AdmittedRequest,
    CacheAcknowledgment,
    CacheGroup,
    ControlReply,
    ControlRequest,
    DataPlaneExtension,
    Dispatch,
    ForwardResult,
    ForwardTable,
    HostPages,
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

    def __init__(
        self,
        config: EngineConfig,
        options: Mapping[str, Any],
        *,
        seat: DeviceSeat | None = None,
    ) -> None:
        self._setup = prepare(config, options, seat=seat)
        self._thread: PlaneThread | None = None
        self._built: Built | None = None
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

    @property
    def num_host_pages(self) -> int:
        """Pages of the host tier."""
        return self._setup.sizes.host_pages

    @property
    def host_pages(self) -> HostPages | None:
        """The host tier's memory, while the plane runs."""
        return None if self._built is None else self._built.host_pages

    def start(self, extensions: Sequence[DataPlaneExtension]) -> None:
        """Start the thread and load the model on it; ModelError if the weights are no good."""
        assert self._thread is None, "a plane starts once"
        self._thread = PlaneThread()
        try:
            built = self._thread.call(lambda: build(self._setup, extensions))
        except BaseException:
            self.stop()
            raise
        self._built, self._done = built, built.runner.done

    def stop(self) -> None:
        """End the thread and let go of the model and its pages."""
        if self._thread is not None:
            if self._built is not None:
                self._built.close(self._thread)
            self._thread.stop()
        self._built = None
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

    def idle_forward(self, table: ForwardTable) -> None:
        """Nothing: a dense model's ranks compute nothing together."""
        self._started()

    def complete(self, pending: PendingForward) -> ForwardResult:
        """Wait for a forward and return its result."""
        assert isinstance(pending, TorchForward), "a plane completes what it executed"
        thread, runner = self._started()
        outputs = thread.result(pending.task)
        self._num_in_flight -= 1
        assert outputs is not None, "only a plan with a batch gives a forward"
        thread.await_mark(outputs.mark)
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

    def interrupt(self, reason: str) -> None:
        """Fail what waits for the thread, which may itself wait for a rank that is gone."""
        if self._thread is not None:
            self._thread.give_up(EngineError(reason))

    @property
    def memory_regions(self) -> Sequence[str]:
        """The pages of the KV cache, and the weights."""
        return REGIONS

    def release_memory(self, regions: Sequence[str]) -> None:
        """Give it back behind what was asked before; EngineError if that cannot be done."""
        memory = self._operating().memory
        self.call(lambda: memory.release(regions))

    def resume_memory(self, regions: Sequence[str]) -> None:
        """Map the pages again, zeroed, and load the weights that were released."""
        memory = self._operating().memory
        self.call(lambda: memory.resume(regions))

    def control(self, request: ControlRequest) -> ControlReply:
        """Profile or replace weights; see `operations` for what each one takes."""
        operations = self._operating().operations
        return self.call(lambda: operations.carry_out(request))

    def settle(self, name: str, *, agreed: bool) -> None:
        """Put in place what the last `control` got ready, or take it back."""
        operations = self._operating().operations
        self.call(lambda: operations.settle(agreed=agreed))

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
        assert self._built is not None, "a thread that was not stopped has its model"
        return self._thread, self._built.runner

    def _operating(self) -> Built:
        self._started()
        assert self._built is not None, "a started plane is built"
        return self._built
