# SPDX-License-Identifier: MIT
"""Two ranks in two processes mirror one scheduler: what they do must be the same in every round."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
from attrs import evolve

from tokenspeed_core.composition.round_hooks import OBSERVED
from tokenspeed_core.composition.signatures import implemented
from tokenspeed_core.testing.conformance.mirror_plan import MirrorJob, MirrorResult
from tokenspeed_core.testing.conformance.subject import Subject

MODULE = "tokenspeed_core.testing.conformance.mirrored_rank"
LIMIT_S = 60.0
WAIT_S = 0.01  # what both ranks waited for in the same call
CPU_S = 0.05
FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<name>\S+)')
Pair = tuple[MirrorResult, MirrorResult]


def check_mirroring(subject: Subject) -> list[str]:
    """Run the plugin on two mirrored ranks; again without one's observers, if it has some."""
    return mirror_all([subject])[0]


def mirror_all(subjects: Sequence[Subject]) -> list[list[str]]:
    """The problems of each plugin, from one pair of processes for all of them."""
    plans = {at: job for at, each in enumerate(subjects) if (job := _job(each)) is not None}
    found = dict(zip(plans, _ran(list(plans.values())), strict=True))
    problems = {at: _problems(pair) for at, pair in found.items()}
    waiting = {at: _waits(*pair) for at, pair in found.items()}
    # A hook that had to wait for a processor twice at once was unlucky; one that waits does again.
    late = [at for at, waits in waiting.items() if waits]
    for at, pair in zip(late, _ran([plans[at] for at in late]), strict=True):
        again = _waits(*pair)
        problems[at] += [text for hook, text in waiting[at].items() if hook in again]
    watching = [
        at
        for at, told in problems.items()
        if not told and OBSERVED & implemented(subjects[at].plugin).keys()
    ]
    silenced = [evolve(plans[at], is_silenced=True) for at in watching]
    for at, pair in zip(watching, _ran(silenced), strict=True):
        problems[at] += _observed(pair, subjects[at])
    return [problems.get(at, []) for at in range(len(subjects))]


def _job(subject: Subject) -> MirrorJob | None:
    address = subject.address
    if address is None:
        return None
    return MirrorJob(address, subject.options, subject.features, subject.patience_s)


def _ran(jobs: Sequence[MirrorJob]) -> list[Pair]:
    """What both ranks told of each job; a pair that hangs is replaced for the jobs after it."""
    if not jobs:
        return []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "jobs").write_bytes(msgspec.json.encode(list(jobs)))
        for _ in jobs:
            said = _run_pair(folder, len(jobs))
            for at in range(len(jobs)):
                _settle(folder, at, said=said)
            if all((folder / f"{at}.0").exists() for at in range(len(jobs))):
                break
        return [(_read(folder / f"{at}.0"), _read(folder / f"{at}.1")) for at in range(len(jobs))]


def _settle(folder: Path, at: int, *, said: str) -> None:
    """Give a job that was begun and not finished a result that says where it hangs."""
    for rank in (0, 1):
        place, trace = folder / f"{at}.{rank}", folder / f"{at}.{rank}.hang"
        if trace.exists() and not place.exists():
            text = trace.read_text()
            hung = f"rank {rank} hangs{_frames(text)}" if text else f"rank {rank} died: {said}"
            place.write_bytes(msgspec.json.encode(MirrorResult(error=hung)))


def _frames(trace: str) -> str:
    """The innermost frame outside the library and the engine, from a dumped traceback."""
    for found in FRAME.finditer(trace):
        file = found["file"]
        if "tokenspeed_core" not in file and "/lib/python" not in file:
            return f" in {found['name']} ({Path(file).name}, line {found['line']})"
    return ""


def _run_pair(folder: Path, count: int) -> str:
    """Run both ranks to their end; returns the last line either wrote as an error."""
    with ExitStack() as stack:
        pairs = [socket.socketpair() for _ in range(count)]
        for pair in pairs:
            for end in pair:
                stack.enter_context(end)
        ranks = [_started(rank, folder, ends=[pair[rank] for pair in pairs]) for rank in (0, 1)]
    said = []
    for process in ranks:
        try:
            _, error = process.communicate(timeout=LIMIT_S + 10 * count)
        except subprocess.TimeoutExpired:
            process.kill()
            _, error = process.communicate()
        said += error.strip().splitlines()[-1:]
    return "; ".join(said)


def _started(rank: int, folder: Path, *, ends: Sequence[socket.socket]) -> subprocess.Popen[str]:
    fds = [end.fileno() for end in ends]
    command = [sys.executable, "-m", MODULE, str(rank), str(folder), *map(str, fds)]
    environment = {
        **os.environ,
        "PYTHONHASHSEED": str(rank + 1),
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }
    return subprocess.Popen(
        command, pass_fds=fds, env=environment, text=True, stderr=subprocess.PIPE
    )


def _read(place: Path) -> MirrorResult:
    return msgspec.json.decode(place.read_bytes(), type=MirrorResult)


# --- what the two told ---------------------------------------------------------------------------


def _problems(pair: Pair) -> list[str]:
    mine, theirs = pair
    found = list(dict.fromkeys([*mine.problems, *theirs.problems]))
    parted = _parting(pair)
    errors = list(dict.fromkeys(each.error for each in pair if each.error and not each.is_parted))
    if parted:
        found.append(f"mirrored ranks part in {parted}; a decision depends on the rank, its clock, "
                     "its hash seed, or chance")  # fmt: skip
    found += errors if len(errors) < 2 or errors[0] != errors[1] else errors[:1]
    if not parted and not errors:
        found += [each.error for each in pair if each.error][:1]
    return found


def _observed(pair: Pair, subject: Subject) -> list[str]:
    hooks = ", ".join(sorted(OBSERVED & implemented(subject.plugin).keys()))
    parted = _parting(pair)
    if not parted and not any(each.error for each in pair):
        return []
    where = parted or next(each.error for each in pair if each.error)
    return [f"its observer hooks ({hooks}) change what happens; without them {where}"]


def _parting(pair: Pair) -> str:
    """The first fact in which two ranks differ, in words; nothing if there is none."""
    for number, (mine, theirs) in enumerate(zip(pair[0].rounds, pair[1].rounds, strict=False), 1):
        for fact in {**mine, **theirs}:
            if mine.get(fact) != theirs.get(fact):
                return f"round {number}: {fact} {_shown(mine, fact)} on rank 0, " + (
                    f"{_shown(theirs, fact)} on rank 1"
                )
    return ""


def _shown(facts: Mapping[str, str], name: str) -> str:
    return repr(facts.get(name, "none")[:80])


def _waits(mine: MirrorResult, theirs: MirrorResult) -> dict[str, str]:
    """Hooks of which a call waited, or computed for long, on both ranks."""
    seen: dict[str, int] = {}
    found: dict[str, str] = {}
    for one, other in zip(mine.calls, theirs.calls, strict=False):
        if one.hook != other.hook:
            break
        nth = seen[one.hook] = seen.get(one.hook, 0) + 1
        waited, cpu = min(one.waited_s, other.waited_s), min(one.cpu_s, other.cpu_s)
        place = f"in its call number {nth}, round {one.round}"
        if waited > WAIT_S:
            found.setdefault(one.hook, f"{one.hook} waited {waited * 1000:.0f} ms {place}")
        elif cpu > CPU_S and nth > 1:  # the first call may fill caches
            found.setdefault(one.hook, f"{one.hook} computed {cpu * 1000:.0f} ms {place}")
    return {hook: f"{text}; hooks run on the loop thread" for hook, text in found.items()}
