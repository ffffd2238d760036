# SPDX-License-Identifier: MIT
"""An engine in this process: its loop on a thread of its own, its callers on theirs."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from numbers import Integral
from typing import Any, TypeGuard, cast, overload

from attrs import evolve, fields_dict, frozen

from tokenspeed_core.completion import Completion, Growing
from tokenspeed_core.composition.rank import Rank
from tokenspeed_core.config.nearest import unknown
from tokenspeed_core.errors import CompositionError, EngineError
from tokenspeed_core.frontends.in_process import InProcessFrontend
from tokenspeed_core.models.errors import ModelError
from tokenspeed_core.models.tokenizer import Tokenizer
from tokenspeed_core.requests.type_checks import type_problem
from tokenspeed_core.streams import AsyncTextStream, TextStream
from tokenspeed_hookspecs import (
    AddRequest,
    ControlReply,
    ControlRequest,
    LogprobOptions,
    SamplingParams,
)

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, str]]
OWN_WISHES = ("logprobs", "features", "request_id")
WISHES = (*OWN_WISHES, "sampling", *fields_dict(SamplingParams))


@frozen
class EngineState:
    """An engine at a glance, after its last round."""

    round_number: int
    running: int
    waiting: int
    active_pages: int
    total_pages: int
    plugins: tuple[str, ...]


@frozen
class _Wishes:
    """Everything about a request but its prompt."""

    sampling: SamplingParams
    logprobs: LogprobOptions | None = None
    features: Mapping[str, object] = {}
    request_id: str | None = None
    stream: bool = True


class LocalEngine:
    """Use it as a context manager, or `start` and `stop` it.

    A prompt is text, or token ids. What a request may say besides: the fields of `SamplingParams`
    by name or as `sampling`, `logprobs`, `features` of plugins, `request_id`.
    """

    def __init__(
        self,
        rank: Rank,
        frontend: InProcessFrontend,
        *,
        tokenizer: Tokenizer | None,
        resources: ExitStack | None = None,
    ) -> None:
        self.rank = rank
        self.tokenizer = tokenizer
        self._frontend = frontend
        self._resources = resources or ExitStack()
        self._thread: threading.Thread | None = None
        self._was_started = False

    # --- life ------------------------------------------------------------------------------------

    def start(self) -> LocalEngine:
        """Load the model, start the plugins and the loop; an engine starts once."""
        if self._was_started:
            raise EngineError("the engine was started before; compose another one")
        self._was_started = True
        try:
            with _named("start"):
                self.rank.start()
        except BaseException:
            self._resources.close()
            raise
        self._frontend.start()
        self._thread = threading.Thread(target=self._run, name="tokenspeed-loop", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End the loop after its round; requests that still run end with an error."""
        if self._thread is None:
            return
        thread, self._thread = self._thread, None
        self._frontend.close()
        thread.join()
        with self._resources, _named("stop"):
            self.rank.stop()

    def __enter__(self) -> LocalEngine:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _run(self) -> None:
        failure = EngineError("the engine was stopped, so the request did not run to its end")
        try:
            self.rank.run(lambda: False)
        except Exception as error:
            # The loop's owner: every stream ends with what ended the loop.
            failure = EngineError(f"the engine failed: {_told(error)}")
            failure.__cause__ = error
        finally:
            self._frontend.end(failure)

    @property
    def state(self) -> EngineState:
        """What the engine is doing; read between two rounds, so it may take one."""
        return self._frontend.ask(self._read_state)

    def _read_state(self) -> EngineState:
        sizes = self.rank.scheduler.sizes
        return EngineState(
            round_number=self.rank.loop.last_round.number,
            running=sizes.prefilling + sizes.decoding,
            waiting=len(self.rank.loop.requests) - sizes.prefilling - sizes.decoding,
            active_pages=sizes.active_pages,
            total_pages=sizes.total_pages,
            plugins=tuple(member.name for member in self.rank.plugins),
        )

    # --- requests --------------------------------------------------------------------------------

    @overload
    def generate(self, prompts: str, **wishes: Any) -> Completion: ...
    @overload
    def generate(self, prompts: Sequence[int], **wishes: Any) -> Completion: ...
    @overload
    def generate(self, prompts: Sequence[Prompt], **wishes: Any) -> list[Completion]: ...
    def generate(
        self, prompts: Prompt | Sequence[Prompt], **wishes: Any
    ) -> Completion | list[Completion]:
        """Complete one prompt, or several at once, in their order."""
        wish = _wishes(wishes, stream=False)
        if _is_one(prompts):
            return self._open(prompts, wish).completion()
        streams = [self._open(prompt, wish) for prompt in cast("Sequence[Prompt]", prompts)]
        return [stream.completion() for stream in streams]

    def stream(self, prompt: Prompt, **wishes: Any) -> TextStream:
        """Text as it comes; leaving the stream early aborts the request."""
        return self._open(prompt, _wishes(wishes, stream=True))

    def astream(self, prompt: Prompt, **wishes: Any) -> AsyncTextStream:
        """The same for asyncio: `async for text in engine.astream(...)`."""
        request, growing = self._request(prompt, _wishes(wishes, stream=True))
        return AsyncTextStream(self._frontend, request, growing=growing)

    def chat(self, messages: Messages, **wishes: Any) -> TextStream:
        """Stream the answer to a conversation, through the model's chat template."""
        prompt = self._need_tokenizer().encode_chat(messages, add_generation_prompt=True)
        return self.stream(prompt, **wishes)

    def abort(self, request_id: str) -> bool:
        """End a request; False if no such request runs."""
        return self._frontend.abort(request_id)

    def control(
        self, name: str, *, timeout_s: float | None = None, **arguments: object
    ) -> ControlReply:
        """Ask for a control operation and wait for its reply."""
        return self._frontend.control(ControlRequest(name, arguments), timeout_s=timeout_s)

    def _open(self, prompt: Prompt, wish: _Wishes) -> TextStream:
        request, growing = self._request(prompt, wish)
        return TextStream(self._frontend, request, growing=growing)

    def _request(self, prompt: Prompt, wish: _Wishes) -> tuple[AddRequest, Growing]:
        request_id = wish.request_id or uuid.uuid4().hex
        if isinstance(prompt, str):
            prompt = self._need_tokenizer().encode(prompt)
        request = AddRequest(
            request_id, prompt, wish.sampling, wish.stream, wish.logprobs, wish.features
        )
        wrong = type_problem(request)
        if wrong is not None:
            raise TypeError(wrong)
        stops = tuple(wish.sampling.stop)
        reader = self.tokenizer.detokenizer(stops=stops) if self.tokenizer else None
        return request, Growing(request_id, reader)

    def _need_tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise EngineError(
                "this engine has no tokenizer, so a prompt must be token ids, got text; name a "
                "model that has one"
            )
        return self.tokenizer


def _is_one(prompts: Prompt | Sequence[Prompt]) -> TypeGuard[Prompt]:
    return isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], Integral))


def _wishes(given: dict[str, Any], *, stream: bool) -> _Wishes:
    """Sort keyword arguments; TypeError names one that is neither a wish nor a parameter."""
    own = {name: given.pop(name) for name in OWN_WISHES if name in given}
    for name in given:
        if name not in WISHES:
            raise TypeError(unknown("keyword of a request", name, known=WISHES))
    sampling = evolve(given.pop("sampling", None) or SamplingParams(), **given)
    if isinstance(sampling.stop, str):
        sampling = evolve(sampling, stop=(sampling.stop,))
    return _Wishes(sampling, stream=stream, **own)


@contextmanager
def _named(step: str) -> Iterator[None]:
    """Let what is ours through, and say of everything else what it kept the engine from."""
    try:
        yield
    except (CompositionError, EngineError, ModelError):
        raise
    except Exception as error:
        raise EngineError(f"the engine failed to {step}: {_told(error)}") from error


def _told(error: BaseException) -> str:
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    return f"{type(error).__name__}: {error}{notes}"
