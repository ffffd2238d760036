# SPDX-License-Identifier: MIT
"""From a message to the scheduler: checks, registration, stages, and what a pause withholds.

A request that is registered is in exactly one place until it ends: held in one stage, withheld, or
in the scheduler. Aborts reach it in each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from attrs import define, field

from tokenspeed_core.errors import EngineError
from tokenspeed_core.loop.controls import Controls, refused
from tokenspeed_core.loop.parts import LoopParts
from tokenspeed_core.loop.relay import Unrelayable
from tokenspeed_core.requests.ingress import CLIENT_ERROR, Admitted, check, resolved_start
from tokenspeed_core.requests.outbox import Outbox
from tokenspeed_core.requests.prompt_scores import PromptScores
from tokenspeed_core.requests.state import RequestState, Timeline
from tokenspeed_core.requests.table import RequestTable, abort_reason
from tokenspeed_hookspecs import (
    AddRequest,
    AdmissionStage,
    AdmittedRequest,
    Hold,
    Refuse,
    RequestSpec,
    Round,
    Verdict,
)

NON_STREAM_INTERVAL = 50

T = TypeVar("T")


@define(eq=False)
class Submission:
    """A registered request on its way to the scheduler."""

    state: RequestState
    spec: RequestSpec


@define(eq=False)
class _Stage:
    stage: AdmissionStage
    held: list[Submission] = field(factory=list)


class Admission:
    """The way in: `take` messages, `register` what was taken, `run_stages` each round."""

    def __init__(
        self, parts: LoopParts, controls: Controls, *, table: RequestTable, outbox: Outbox
    ) -> None:
        self._parts = parts
        self._table = table
        self._outbox = outbox
        self._controls = controls
        self._stages = [_Stage(stage) for stage in parts.stages]
        self._taken: dict[str, Admitted] = {}
        self._kept_back: list[AddRequest] = []
        self._withheld: list[Submission] = []

    @property
    def num_waiting(self) -> int:
        """Requests that are kept back, held or withheld."""
        held = sum(len(stage.held) for stage in self._stages)
        return held + len(self._withheld) + len(self._kept_back)

    @property
    def num_withheld(self) -> int:
        """Requests that wait for the end of a pause."""
        return len(self._withheld)

    @property
    def num_held(self) -> Mapping[str, int]:
        """Requests held in each stage, by its name."""
        return {stage.stage.name: len(stage.held) for stage in self._stages}

    def held_ids(self) -> list[str]:
        """The requests held in stages, by stage and in arrival order."""
        return [held.state.request_id for stage in self._stages for held in stage.held]

    def is_coming(self, request_id: str) -> bool:
        """Whether a request of this id was received and is not registered yet."""
        if request_id in self._taken:
            return True
        return any(kept.request_id == request_id for kept in self._kept_back)

    def take_kept_back(self, round: Round) -> None:
        """Try again what came too soon after a request of the same id had ended."""
        if not self._kept_back:
            return
        kept, self._kept_back = self._kept_back, []
        for request in kept:
            self.take(request, round)

    def take(self, request: AddRequest, round: Round) -> None:
        """Check one request; it is registered with the others of its batch, or answered now."""
        request_id = request.request_id
        if not request_id:
            self._parts.log.warning("dropped a request without a usable id: %r", request_id)
            return
        if self._table.get(request_id) is not None or request_id in self._taken:
            # Its answer would be delivered to the older stream, so it gets none.
            self._parts.log.warning("dropped request %r: its id is in use", request_id)
            return
        if not self._parts.scheduler.has_room_for(request_id):
            self._kept_back.append(request)
            return
        admitted = check(request, self._parts.settings.limits)
        if isinstance(admitted, Admitted):
            refusal = self._validate(admitted, round)
            if refusal is None:
                self._taken[request_id] = admitted
                return
            admitted = refusal
        self._outbox.refuse(request_id, admitted.message, status_code=admitted.status_code)

    def refuse_untold(self, message: Unrelayable) -> None:
        """Answer a request or operation that the other ranks cannot be told."""
        problem = f"the other ranks cannot be told: {message.problem}"
        if message.operation is not None:
            self._controls.reply(refused(_text(message.operation), problem))
            return
        request_id = _text(message.request_id or b"")
        if self._table.get(request_id) is None and request_id not in self._taken:
            text = f"Invalid request: {problem}"
            self._outbox.refuse(request_id, text, status_code=CLIENT_ERROR)

    def _validate(self, admitted: Admitted, round: Round) -> Refuse | None:
        validate = self._parts.hooks.validate_request
        if validate is None:
            return None
        round.candidate = admitted.request
        return validate(round)

    def register(self) -> None:
        """Register what was taken: the data plane learns of it before the scheduler can plan it."""
        if not self._taken:
            return
        taken, self._taken = list(self._taken.values()), {}
        self._parts.data_plane.admit([_for_data_plane(a.request) for a in taken])
        submissions = [self._submission(admitted) for admitted in taken]
        for submission in submissions:
            self._table.register(submission.state)
        self._submit([s for s in submissions if self._passes(s, 0)])

    def run_stages(self) -> None:
        """Poll every stage with held requests, agree, and move on what passed."""
        if not self._stages or not any(stage.held for stage in self._stages):
            return
        codes = [self._poll(stage) for stage in self._stages]
        agreed = self._agreed([code for part in codes for code in part])
        passed: list[Submission] = []
        for index, mine in enumerate(codes):
            count = len(mine)
            passed += self._settle(index, agreed[:count])
            agreed = agreed[count:]
        self._submit(passed)

    def release_withheld(self) -> None:
        """Once admissions run again: submit what was withheld, and end what was aborted since."""
        if self._controls.admissions_blocked or not self._withheld:
            return
        withheld, self._withheld = self._withheld, []
        self._submit(withheld)

    def drop(self, request_id: str) -> bool:
        """Take a held request out of its stage; False if no stage holds it."""
        for stage in self._stages:
            for submission in stage.held:
                if submission.state.request_id == request_id:
                    stage.held.remove(submission)
                    _call(stage.stage, "leave", request_id)
                    return True
        return False

    def withholds(self, request_id: str) -> bool:
        """Whether the request waits for the end of a pause."""
        return any(s.state.request_id == request_id for s in self._withheld)

    def _submission(self, admitted: Admitted) -> Submission:
        request, settings = admitted.request, self._parts.settings
        interval = request.sampling.stream_interval or settings.stream_interval
        scores = None
        if request.logprobs is not None:
            start = resolved_start(request.logprobs, len(request.prompt_ids))
            scores = PromptScores(request.prompt_ids, start, top=request.logprobs.top)
        state = RequestState(
            request_id=request.request_id,
            prompt_ids=request.prompt_ids,
            sampling=request.sampling,
            features=request.features,
            budget=admitted.budget,
            interval=interval if request.stream else NON_STREAM_INTERVAL,
            logprobs=request.logprobs,
            scores=scores,
            times=Timeline(self._parts.clock()),
        )
        spec = RequestSpec(
            request.request_id, request.prompt_ids, admitted.budget, admitted.max_cached_prefix
        )
        return Submission(state, spec)

    def _passes(self, submission: Submission, first: int) -> bool:
        """Send a request through the stages from `first` on; True if it passed the last."""
        state = submission.state
        if state.is_finished:
            self._outbox.end(state)
            return False
        for stage in self._stages[first:]:
            verdict = _call(stage.stage, "enter", state)
            if isinstance(verdict, Hold):
                stage.held.append(submission)
                return False
            if isinstance(verdict, Refuse):
                self._fail(state, verdict)
                return False
        return True

    def _poll(self, stage: _Stage) -> Sequence[int]:
        if not stage.held:
            return []
        states = [s.state for s in stage.held]
        codes: Sequence[int] = _call(stage.stage, "poll", states)
        return _one_each(codes, states, asked=f"stage {stage.stage.name!r} to poll")

    def _agreed(self, codes: list[int]) -> list[int]:
        replica = self._parts.ranks.replica
        return codes if replica.size == 1 else replica.agree_min(codes)

    def _settle(self, index: int, codes: Sequence[int]) -> list[Submission]:
        """Act on a stage's verdicts; return what passed it and all later ones."""
        stage = self._stages[index]
        held = stage.held[: len(codes)]
        if not held:
            return []
        states = [s.state for s in held]
        found: Sequence[Verdict] = _call(stage.stage, "settle", states, codes)
        verdicts = _one_each(found, states, asked=f"stage {stage.stage.name!r} to settle")
        # What came in from an earlier stage in this round stays behind what was polled.
        stage.held = stage.held[len(codes) :]
        still: list[Submission] = []
        passed: list[Submission] = []
        for submission, verdict in zip(held, verdicts, strict=True):
            if isinstance(verdict, Hold):
                still.append(submission)
            elif isinstance(verdict, Refuse):
                self._fail(submission.state, verdict)
            elif self._passes(submission, index + 1):
                passed.append(submission)
        stage.held = still + stage.held
        return passed

    def _fail(self, state: RequestState, refusal: Refuse) -> None:
        self._outbox.fail(state, abort_reason(refusal.message, refusal.status_code))

    def _submit(self, submissions: list[Submission]) -> None:
        if self._controls.admissions_blocked:
            self._withheld += submissions
            return
        ready = []
        for submission in submissions:
            if submission.state.is_finished:
                self._outbox.end(submission.state)
            else:
                submission.state.times.submitted = self._parts.clock()
                ready.append(submission.spec)
        if ready:
            self._parts.scheduler.submit(ready)


def _text(utf8: bytes) -> str:
    return utf8.decode("utf-8", "surrogatepass")


def _for_data_plane(request: AddRequest) -> AdmittedRequest:
    return AdmittedRequest(
        request.request_id,
        request.prompt_ids,
        request.sampling,
        request.logprobs,
        request.features,
    )


def _call(stage: AdmissionStage, verb: str, *arguments: object) -> Any:
    """Call a stage's method; what it raises ends the engine, with the stage's name on it."""
    try:
        return getattr(stage, verb)(*arguments)
    except Exception as error:
        raise EngineError(
            f"admission stage {stage.name!r} failed in {verb}: {type(error).__name__}: {error}"
        ) from error


def _one_each(found: Sequence[T], held: Sequence[object], *, asked: str) -> Sequence[T]:
    if len(found) != len(held):
        raise EngineError(
            f"asked admission {asked} {len(held)} held requests and got {len(found)} values; it "
            "must give one a request, in the same order"
        )
    return found
