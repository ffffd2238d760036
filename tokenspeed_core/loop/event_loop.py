# SPDX-License-Identifier: MIT
"""One rank's scheduling rounds.

The order of the phases is behaviour: acknowledgments reach the scheduler before the plan that needs
their pages, inputs of a batch are gathered before a commit may end its requests, a finish leaves
before the reply it was waited for. `round` is that order; the phases are below it, in the same one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, MutableSequence, Sequence

from tokenspeed_core.errors import EngineError
from tokenspeed_core.loop.admission import Admission
from tokenspeed_core.loop.cache_ledger import CacheLedger
from tokenspeed_core.loop.controls import Controls
from tokenspeed_core.loop.data_parallel import DataParallelRound
from tokenspeed_core.loop.drains import Drains
from tokenspeed_core.loop.gate import Gate
from tokenspeed_core.loop.operations import Operations
from tokenspeed_core.loop.parts import LoopParts
from tokenspeed_core.loop.registered import RegisteredRequests
from tokenspeed_core.loop.relay import Relay, Relayed, Told, Unrelayable
from tokenspeed_core.requests.cache_tiers import note_loaded
from tokenspeed_core.requests.commit import Committer
from tokenspeed_core.requests.finish import FinishRules
from tokenspeed_core.requests.flight import InFlight, RowGatherer, plan_logprobs
from tokenspeed_core.requests.outbox import Outbox
from tokenspeed_core.requests.result_codec import decode, encode
from tokenspeed_core.requests.table import RequestTable, abort_reason
from tokenspeed_hookspecs import (
    AbortRequests,
    AddRequest,
    Batch,
    CommittedForward,
    Dispatch,
    ForwardResult,
    Load,
    Message,
    OutputBatch,
    Plan,
    Round,
    StorageTick,
)

IDLE_WAIT_S, HELD_WAIT_S = 0.010, 0.001
FROZEN_SLEEP_S = 0.001
CAPACITY_ERROR = 524
PAUSE_ABORT = "Aborted by pause"


class EventLoop:
    """Runs rounds; every object it works with belongs to this rank."""

    def __init__(self, parts: LoopParts) -> None:
        limits = parts.settings.limits
        self.scheduler = parts.scheduler
        self.controls = Controls(parts.data_plane.memory_regions)
        self.table = RequestTable()
        self.gate = Gate(
            parts.ranks,
            self.controls,
            scheduler=parts.scheduler,
            has_requests=lambda: len(self.table) > 0,
            cache_clearing=parts.hooks.cache_clearing,
        )
        self.in_flight: deque[InFlight] = deque()
        self.ledger = CacheLedger(parts.ranks.replica)
        self.last_round = Round(0)
        self.phases: MutableSequence[str] = deque(["start"], maxlen=1)  # the last one is now
        self._enter: Callable[[str], None] = self.phases.append
        self._parts = parts
        self._hooks = parts.hooks
        self._plane = parts.data_plane
        self._outbox = Outbox(self.table, parts.clock)
        self._admission = Admission(parts, self.controls, table=self.table, outbox=self._outbox)
        self.requests = RegisteredRequests(
            self.table, self._outbox, admission=self._admission, scheduler=parts.scheduler
        )
        self._operations = Operations(
            parts,
            self.controls,
            gate=self.gate,
            num_withheld=lambda: self._admission.num_withheld,
        )
        self._drains = Drains(parts, self.controls, gate=self.gate)
        self._relay = Relay(parts.ranks.replica)
        self._gatherer = RowGatherer(self.table)
        rules = FinishRules(limits.vocab_size, limits.eos_token_ids, decode_text=parts.decode_text)
        self._committer = Committer(self.table, self._outbox, rules, parts.clock)
        dp = parts.ranks.dp
        self._in_step = DataParallelRound(dp) if dp is not None else None
        self._forward_allowed = True
        self._did_nothing = False  # the last plan
        self._is_stopping = False

    @property
    def counters(self) -> Mapping[str, int]:
        """What the rank has done since its start; tokens are those that were sent; prompt and
        cached tokens, the latter also by tier, are of requests that ended."""
        outbox = self._outbox
        return {
            "rounds": self.last_round.number,
            "completion_tokens": outbox.num_tokens,
            "finished_requests": outbox.num_finished,
            "refused_requests": outbox.num_refused,
            **outbox.prefilled,
        }

    def run(self, should_stop: Callable[[], bool]) -> None:
        """Run rounds until one agrees to stop; an error names rank, round and phase."""
        try:
            while not self.round(should_stop()):
                pass
        except Exception as error:
            rank, number = self._parts.ranks.rank, self.last_round.number
            error.add_note(f"in rank {rank}, round {number}, phase {self.phases[-1]}")
            raise

    def round(self, stop_requested: bool = False) -> bool:
        """Run one round; returns whether the ranks agreed to stop after it."""
        round = self._begin()
        start = self._receive(round, stop_requested)
        self._admit(round, start.messages)
        self._change_pause()
        self._admission.run_stages()
        self._gate(round)
        self._advance_head(round)
        if round.frozen:
            self._run_frozen(round)
        else:
            self._dispatch(round, self._plan(round))
            self._commit_down_to(self._depth(round), round)
            self._poll_events(round)
        self.scheduler.advance()
        self._drain(round)
        return self._is_stopping

    def _begin(self) -> Round:
        self.last_round = Round(self.last_round.number + 1)
        return self.last_round

    def _receive(self, round: Round, stop_requested: bool) -> Relayed:
        """The replica's messages; only its first member reads the frontend, and waits if idle."""
        self._enter("receive")
        received: Sequence[Message] = ()
        frontend = self._parts.frontend
        if frontend is not None:
            received = frontend.receive(self._wait(round))
            # Asked after the messages were taken, so that the last ones are still handled.
            stop_requested = stop_requested or frontend.is_closed
        report = self._hooks.round_report
        reports = report(round) if report is not None else None
        relayed = self._relay.exchange(
            stop_requested, received, now=self._parts.clock(), reports=reports
        )
        self.table.now = round.now = relayed.now
        round.reports = relayed.reports
        self._is_stopping = relayed.stop
        return relayed

    def _wait(self, round: Round) -> float | None:
        """How long to wait for a message; None while this rank, or one in step with it, has work.

        What stages or a store hold up is asked for again soon; what a pause withholds only a
        message can release."""
        if self._in_step is not None and not self._in_step.was_idle:
            return None
        if self.in_flight or self.ledger.num_open or self.gate.is_busy:
            return None
        if self._did_nothing and self.scheduler.storage_pending:
            return HELD_WAIT_S
        if self.scheduler.has_work or self.controls.drain is not None:
            return None
        if self._hooks.busy is not None and self._hooks.busy(round):
            return None
        withheld = self._admission.num_withheld if self.controls.admissions_blocked else 0
        is_empty = len(self.table) <= withheld and self._admission.num_waiting <= withheld
        return IDLE_WAIT_S if is_empty else HELD_WAIT_S

    # --- admit -------------------------------------------------------------------------------

    def _admit(self, round: Round, messages: Sequence[Told]) -> None:
        """Take messages in order; a control acts after the requests that came before it."""
        self._enter("admit")
        self._admission.take_kept_back(round)
        for message in messages:
            if isinstance(message, AddRequest):
                self._admission.take(message, round)
            elif isinstance(message, AbortRequests):
                self._abort(message, round)
            elif isinstance(message, Unrelayable):
                self._admission.refuse_untold(message)
            else:
                self._admission.register()
                self._operations.handle(message, round)
        self.table.sweep_markers()
        self._admission.register()

    def _abort(self, message: AbortRequests, round: Round) -> None:
        round.aborted = message.request_ids
        if self._hooks.request_aborted is not None:
            self._hooks.request_aborted(round)
        for request_id in message.request_ids:
            self.requests.abort_by_client(request_id)

    def _change_pause(self) -> None:
        """What a pause cancels ends in this round, ahead of its reply; then what may run again."""
        self._enter("pause")
        if self.controls.take_abort_all():
            for request_id in self.table.ids():
                self.requests.abort(request_id, PAUSE_ABORT)
        if self.controls.take_cancel_unscheduled():
            for request_id in self._admission.held_ids():
                self.requests.abort(request_id, PAUSE_ABORT)
        self._admission.release_withheld()

    # --- gate and storage tick ---------------------------------------------------------------

    def _gate(self, round: Round) -> None:
        self._enter("gate")
        self.gate.run(round)

    def _advance_head(self, round: Round) -> None:
        """The tick and the acknowledgments, at the head so that this round's plan sees them."""
        self._enter("storage")
        round.frozen = self.controls.forwards_blocked
        tick = self._tick(round)
        done = []
        if self.ledger.num_open:
            done = self.ledger.acknowledge(self._plane.poll_cache_operations())
        if tick is not None or done:
            self.scheduler.advance_head(tick, done)

    def _tick(self, round: Round) -> StorageTick | None:
        """A plugin's tick, or one of our own when the forward permission changed."""
        tick = None if self._hooks.storage_tick is None else self._hooks.storage_tick(round)
        allowed = not round.frozen
        if tick is None and allowed != self._forward_allowed:
            tick = StorageTick(allow_forward=allowed, allow_storage=allowed)
        self._forward_allowed = allowed
        return tick

    # --- plan, dispatch, commit --------------------------------------------------------------

    def _plan(self, round: Round) -> Plan:
        self._enter("plan")
        plan = round.plan = self.scheduler.plan()
        self._did_nothing = not (plan.needs_device or plan.storage)
        if self._hooks.planned is not None:
            self._hooks.planned(round)
        if plan.operations:
            # Counted here, because the plan is certain to be executed below.
            self.ledger.dispatched(plan.operations)
        for abort in plan.aborts:
            state = self.table.get(abort.request_id)
            if state is not None:
                self._outbox.fail(state, abort_reason(abort.detail, error_type=CAPACITY_ERROR))
        return plan

    def _dispatch(self, round: Round, plan: Plan) -> None:
        """Hand the plan to the data plane; a round with nothing for the device leaves it alone."""
        batch = plan.batch
        others_forward = self._step_together(round, batch)
        if batch is None:
            self._dispatch_nothing(round, plan, others_forward=others_forward)
            return
        self._enter("dispatch")
        dispatch = Dispatch(table=round.table)
        rows = self._gatherer.gather(batch)
        if plan.operations:
            note_loaded(plan, rows.states, groups=self._plane.cache_groups)
        if self.table.num_scored:
            dispatch.logprobs = plan_logprobs(batch, rows)
        round.batch, round.dispatch, round.in_flight = batch, dispatch, len(self.in_flight)
        if self._hooks.dispatch is not None:
            self._hooks.dispatch(round)
            if round.commit_first:
                self._commit_down_to(0, round)
        if self._hooks.iteration is not None:
            self._hooks.iteration(round)
        now = self._parts.clock()
        for state in rows.states[: batch.num_extends]:
            if state is not None and state.times.scheduled is None:
                state.times.scheduled = now
        pending = self._plane.execute(plan, dispatch)
        if pending is None:
            raise EngineError("the data plane ran a batch and returned no forward to commit")
        logprobs = dispatch.logprobs
        version = self.controls.weight_version
        self.in_flight.append(InFlight(batch, rows, pending, logprobs, round.number, now, version))

    def _dispatch_nothing(self, round: Round, plan: Plan, *, others_forward: bool) -> None:
        """A plan without a batch; where others forward this rank does so idly, unless its weights
        are gone, and first commits what is in flight, since nothing follows that would."""
        if others_forward:
            self._commit_down_to(0, round)
        if plan.needs_device:
            self._plane.execute(plan, Dispatch(table=round.table))
        if others_forward and round.table is not None and not self.controls.is_sleeping:
            self._plane.idle_forward(round.table)

    def _step_together(self, round: Round, batch: Batch | None) -> bool:
        """Learn what every data-parallel rank does; True if others forward and this one not."""
        if self._in_step is None:
            return False
        self._enter("step")
        found = self._in_step.exchange(batch, stop=self._is_stopping)
        round.table = found.table
        self._is_stopping = found.stop
        return found.needs_idle_forward

    def _depth(self, round: Round) -> int:
        """A round without a forward drains fully, so that results never wait for future traffic."""
        return self._parts.settings.in_flight_depth if round.batch is not None else 0

    def _commit_down_to(self, depth: int, round: Round) -> None:
        self._enter("commit")
        while len(self.in_flight) > depth:
            flight = self.in_flight.popleft()
            result = self._sampled(self._plane.complete(flight.pending))
            released = len(self._outbox.released)
            self._outbox.weight_version = flight.weight_version
            outcome = self._committer.commit(flight, result)
            self.scheduler.commit(flight.batch, outcome)
            if self._hooks.committed is not None:
                ended, at = self._outbox.released[released:], self._committer.committed_at
                round.forward = CommittedForward(flight.batch, result, ended, flight.number, at)
                round.forwards = (*round.forwards, round.forward)
                self._hooks.committed(round)

    def _sampled(self, result: ForwardResult) -> ForwardResult:
        """The last stage's result, on every stage; each has waited for its own forward by now."""
        stages = self._parts.ranks.pp
        if stages is None:
            return result
        last = stages.size - 1
        if stages.index == last:
            stages.broadcast(last, encode(result))
            return result
        return decode(stages.broadcast(last, b""))

    def _run_frozen(self, round: Round) -> None:
        """What is dispatched commits; cache and storage work goes on; no forward is planned."""
        self._commit_down_to(0, round)
        plan = self._plan(round)
        self._dispatch_nothing(round, plan, others_forward=self._step_together(round, None))
        self._parts.sleep(FROZEN_SLEEP_S)

    def _poll_events(self, round: Round) -> None:
        self._enter("events")
        if self._hooks.poll_events is not None:
            events = self._hooks.poll_events(round)
            if events:
                self.scheduler.queue_events(events)

    # --- drain -------------------------------------------------------------------------------

    def _drain(self, round: Round) -> None:
        """What leaves the rank, after the round's last change to the scheduler."""
        self._enter("drain")
        events = self.scheduler.drain_events()
        if self._hooks.scheduler_events is not None:
            round.scheduler_events = events
            self._hooks.scheduler_events(round)
        outbox = self._outbox
        if outbox.released:
            # The data plane lets go before a client can learn of the end.
            self._plane.release(outbox.released)
        self._send(round)
        self._drains.finish(round, num_in_flight=len(self.in_flight))
        frontend = self._parts.frontend
        for reply in self.controls.take_replies():
            if frontend is not None:
                frontend.reply(reply)
        finished = outbox.finished
        # Before the observers: an end that comes after this one's outputs leaves in the next round.
        outbox.start_over()
        if self._hooks.request_finished is not None:
            for round.finished in finished:
                self._hooks.request_finished(round)
        if self._hooks.round_done is not None:
            self._hooks.round_done(round)

    def _send(self, round: Round) -> None:
        outputs, frontend = self._outbox.outputs, self._parts.frontend
        round.num_outputs = len(outputs.request_ids)
        # A request that ended silently changed the load, which whoever routes wants to know.
        if frontend is None or not (outputs.request_ids or self._outbox.released):
            return
        sizes = self.scheduler.sizes
        round.load = Load(
            running=len(self.table),
            waiting=sizes.waiting,
            active_pages=sizes.active_pages,
            total_pages=sizes.total_pages,
        )
        # What was sent is the frontend's; the outbox would go on with an empty one.
        frontend.send(outputs if outputs.request_ids else OutputBatch(), round.load)
