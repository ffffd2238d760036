# SPDX-License-Identifier: MIT
"""Serving clients from a process of its own: the engines as a front end sees them.

A front end is an entry point in `tokenspeed.frontends`: a class that is a `FrontendServer`. It runs
apart from the engines and takes no part in their rounds, so it is no plugin and has no hooks.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from attrs import field, frozen

from tokenspeed_hookspecs.outputs import Chunk, Load
from tokenspeed_hookspecs.requests import AddRequest, ControlReply, ControlRequest


class EngineUnavailableError(RuntimeError):
    """An engine died or does not take requests; nothing more will come of it."""


class RequestInUseError(ValueError):
    """A request id is already in flight; nothing was sent."""


@frozen(kw_only=True)
class EngineInfo:
    """What an engine says of itself when it connects. Lengths in tokens, `num_pages` usable."""

    index: int
    model: str
    max_model_len: int
    vocab_size: int
    page_size: int
    num_pages: int
    dtype: str
    version: str
    max_num_seqs: int = 0
    features: tuple[str, ...] = ()
    details: Mapping[str, object] = field(factory=dict)


class ChunkStream(Protocol):
    """One request's chunks, in order; ends after the chunk that has a `finish`.

    An engine's death raises EngineUnavailableError once. Closing the stream early, or cancelling
    the task that reads it, aborts the request.
    """

    def __aiter__(self) -> AsyncIterator[Chunk]: ...
    async def __anext__(self) -> Chunk: ...
    async def aclose(self) -> None:
        """Leave the stream; a request that still runs is aborted."""
        ...


class EngineClient(Protocol):
    """Every engine of a deployment, for asyncio."""

    @property
    def engines(self) -> Sequence[EngineInfo]:
        """The engines in index order."""
        ...

    @property
    def loads(self) -> Sequence[Load | None]:
        """Each engine's last reported load; None before its first."""
        ...

    @property
    def failure(self) -> EngineUnavailableError | None:
        """Why no request can run any more, or None while the engines live."""
        ...

    async def generate(self, request: AddRequest, *, rank: int | None = None) -> ChunkStream:
        """Send a request to one engine, to the data-parallel `rank` if given.

        RequestInUseError: the id is in flight. ValueError: unknown rank. EngineUnavailableError:
        see `failure`.
        """
        ...

    async def abort(self, request_id: str) -> bool:
        """End a request; its stream ends with finish kind abort. False: it is not in flight."""
        ...

    async def control(
        self, request: ControlRequest, *, timeout_s: float | None = None
    ) -> Sequence[ControlReply]:
        """Send a control request to every engine; one reply each, in engine order.

        TimeoutError after `timeout_s`; without it a drain may take as long as its requests.
        """
        ...


class Detokenizer(Protocol):
    """One request's tokens as text; joined pieces equal the decoding of all tokens at once."""

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text; nothing more comes out after it."""
        ...

    def push(self, token_ids: Sequence[int]) -> str:
        """Add tokens; the text that became certain with them, never half a character."""
        ...

    def flush(self) -> str:
        """What was held back, at the end."""
        ...


class Tokenizer(Protocol):
    """The model's vocabulary and chat template. What cannot be encoded is a ValueError."""

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id."""
        ...

    @property
    def special_ids(self) -> Collection[int]:
        """The tokens that are marks and never text: starts, ends, roles."""
        ...

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """The ids of a text; `add_special` puts the model's start token in front."""
        ...

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> list[int]:
        """A conversation's ids, through the model's chat template."""
        ...

    def decode(self, token_ids: Iterable[int], *, skip_special: bool = True) -> str:
        """The text of a whole sequence."""
        ...

    def detokenizer(self, *, skip_special: bool = True, stops: Sequence[str] = ()) -> Detokenizer:
        """A fresh incremental decoder for one request."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes a token stands for, which need not be whole characters."""
        ...


@frozen(kw_only=True)
class ServingContext:
    """What a front end serves with. Call `ready` with the URL once clients can connect; `log` is
    the process's. `composition` is what the engine is composed of, as `tokenspeed plugins --json`
    prints it. Once `serve` is cancelled new requests find no port, and those that run may go on for
    `drain_timeout_s`."""

    client: EngineClient
    tokenizer: Tokenizer | None
    model: str
    log: logging.Logger
    ready: Callable[[str], None]
    composition: Mapping[str, Any] = field(factory=dict)
    drain_timeout_s: float = 5.0


class FrontendServer(Protocol):
    """A server for clients, made once a deployment as `Server(options)`.

    `Options` is an attrs class; its fields become flags of `tokenspeed serve` and the keys of the
    `[frontend]` table.
    """

    Options: ClassVar[type]

    def check(self) -> Sequence[str]:
        """Every problem of the options as a sentence (a port that is taken, a key that cannot be
        read); asked before any engine starts."""
        ...

    def example(self, url: str, model: str) -> str:
        """A shell line that shows a client at work, for whoever just started the server."""
        ...

    async def serve(self, context: ServingContext) -> None:
        """Serve until cancelled, then close every port and, when its requests ended or their time
        is up, every connection."""
        ...
