# SPDX-License-Identifier: MIT
"""The torch profiler over some of the plane's forwards, written as a Chrome trace.

It starts and stops on the plane's thread, because it records the thread it was started on. A trace
that cannot be written costs only itself: the failure is told by the next request.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from attrs import define, frozen
from torch.profiler import ProfilerActivity

from tokenspeed_core.torch_plane.refusal import RefusedError

ACTIVITIES = {"CPU": ProfilerActivity.CPU, "GPU": ProfilerActivity.CUDA}
BUSY = "Profiling is already in progress. Call /stop_profile first."
IDLE = "Profiling is not in progress. Call /start_profile first."
LONGEST_NAME = 200


@frozen(kw_only=True)
class ProfileOrder:
    """What to record. `start_step` counts the plane's forwards from its start; one that is over
    means the next. Without `num_steps` it is recorded until it is stopped."""

    output_dir: str | None = None
    start_step: int | None = None
    num_steps: int | None = None
    activities: list[str] | None = None
    with_stack: bool | None = None
    record_shapes: bool | None = None
    profile_id: str | None = None


@define(eq=False)
class _Session:
    profiler: torch.profiler.profile
    file: Path
    first: int
    end: int | None
    is_running: bool = False


class Profiler:
    """At most one recording at a time; `folder` is where all traces go, a new temporary one if
    None. `num_forwards` counts."""

    def __init__(self, folder: Path | None, *, device: torch.device) -> None:
        self.num_forwards = 0
        self._folder = folder
        self._device = device
        self._session: _Session | None = None
        self._num_sessions = 0
        self._failure = ""

    @property
    def is_busy(self) -> bool:
        """Whether something is recorded, or will be."""
        return self._session is not None

    def start(self, order: ProfileOrder) -> str:
        """Begin, now or at the forward named; the answer, which names the trace's file."""
        if self._session is not None:
            raise RefusedError(BUSY)
        activities = self._activities(order.activities)
        first = _at_least(order.start_step, 0, name="start_step")
        count = _at_least(order.num_steps, 1, name="num_steps")
        file = self._file(order)
        first = max(first or 0, self.num_forwards)
        profiler = torch.profiler.profile(
            activities=activities,
            with_stack=bool(order.with_stack),
            record_shapes=bool(order.record_shapes),
        )
        end = None if count is None else first + count
        self._session = _Session(profiler, file, first, end)
        self._failure = ""
        self.before_forward()
        return self._told(f"Succeeded. The trace will be {file}")

    def stop(self) -> str:
        """End the recording and write the trace; one that had not begun is given up."""
        session = self._session
        if session is None:
            self._told("")
            raise RefusedError(IDLE)
        if not session.is_running:
            self._session = None
            return f"Succeeded. Nothing was recorded: it was to begin at forward {session.first}"
        self._finish(session)
        return self._told(f"Succeeded. The trace is {session.file}")

    def before_forward(self) -> None:
        """Begin if this is the forward to begin at."""
        session = self._session
        if session is None or session.is_running or self.num_forwards < session.first:
            return
        try:
            session.profiler.start()
            session.is_running = True
        except RuntimeError as error:
            self._session = None
            self._failure = f"The profiler did not start ({error}); does another one run?"

    def after_forward(self) -> None:
        """Count, and end if that was the last forward wanted."""
        self.num_forwards += 1
        session = self._session
        if session is not None and session.end is not None and self.num_forwards >= session.end:
            self._finish(session)

    def _told(self, answer: str) -> str:
        """The answer, unless something failed in the meantime."""
        failure, self._failure = self._failure, ""
        if failure:
            raise RefusedError(failure)
        return answer

    def _finish(self, session: _Session) -> None:
        self._session = None
        try:
            session.profiler.stop()
            session.profiler.export_chrome_trace(str(session.file))
        except (OSError, RuntimeError) as error:
            self._failure = f"The trace {session.file} could not be written: {error}"

    def _activities(self, names: Sequence[str] | None) -> list[ProfilerActivity]:
        has_gpu = self._device.type == "cuda"
        wanted = list(names or (ACTIVITIES if has_gpu else ("CPU",)))
        if unknown := [name for name in wanted if name not in ACTIVITIES]:
            raise RefusedError(f"activities: one or both of CPU and GPU, got {unknown[0]!r}")
        if not has_gpu and "CPU" not in wanted:
            raise RefusedError(f"activities: no GPU to record, this plane runs on {self._device}")
        return [ACTIVITIES[name] for name in wanted if has_gpu or name == "CPU"]

    def _file(self, order: ProfileOrder) -> Path:
        """A new file's name, in a folder that can be written to."""
        name = order.profile_id or time.strftime("%Y%m%d-%H%M%S")
        if Path(name).name != name or not name.isprintable() or len(name) > LONGEST_NAME:
            raise RefusedError(f"profile_id: expected a file's name, got {name[:LONGEST_NAME]!r}")
        folder = self._subfolder(order.output_dir or "")
        self._num_sessions += 1
        return folder / f"{name}-{os.getpid()}-{self._num_sessions}.trace.json.gz"

    def _subfolder(self, name: str) -> Path:
        """Make a folder below the traces' own; nobody who may ask for a trace writes elsewhere."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="tokenspeed-traces-"))
        try:
            root = self._folder.resolve()
            folder = (root / name).resolve()
            if not folder.is_relative_to(root):
                raise RefusedError(
                    f"output_dir: expected a folder below {root}, got {name[:LONGEST_NAME]!r}; the "
                    "option data_plane.traces chooses another place"
                )
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return folder
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise RefusedError(
                f"output_dir: cannot write to {name[:LONGEST_NAME]!r} below {self._folder}: "
                f"{reason}"
            ) from error


def _at_least(value: int | None, least: int, *, name: str) -> int | None:
    if value is not None and value < least:
        raise RefusedError(f"{name}: expected at least {least}, got {value}")
    return value
