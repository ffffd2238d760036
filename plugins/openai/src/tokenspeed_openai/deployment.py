# SPDX-License-Identifier: MIT
"""What every endpoint shares: the engines, the tokenizer, the options, and what was counted."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

from attrs import define, field, frozen

from tokenspeed_hookspecs import EngineClient, ServingContext
from tokenspeed_openai.errors import ApiError, unavailable
from tokenspeed_openai.options import Options
from tokenspeed_openai.reasoning import CLOSING
from tokenspeed_openai.texts import Texts


@frozen
class Limits:
    """What every engine of the deployment can serve."""

    max_model_len: int
    vocab_size: int
    features: frozenset[str]


@define
class Counters:
    """What this front end has seen since its start. `finished` counts choices by finish reason."""

    requests: int = 0
    choices: int = 0
    open_choices: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    finished: Counter[str] = field(factory=Counter)


class Deployment:
    """Made once the engines are connected."""

    def __init__(self, context: ServingContext, options: Options) -> None:
        self.context = context
        self.options = options
        self.limits = _limits(context.client)
        self.texts = Texts(context.tokenizer, max_tokens=self.limits.max_model_len)
        self.counters = Counters()
        self.is_cutting = asyncio.Event()  # the server stops and waits for answers no longer
        self.started_at = time.time()
        self.has_special_marks = self.texts.is_special(CLOSING)
        self.model = options.served_model_name or context.model

    @property
    def client(self) -> EngineClient:
        """The engines."""
        return self.context.client

    def check_model(self, name: str | None) -> None:
        """Refuse a request for a model that is not here; none named means the one that is."""
        if name is not None and name != self.model:
            raise ApiError(
                404,
                f"The model {name[:200]!r} does not exist; this server has {self.model!r}",
                param="model",
                code="model_not_found",
            )

    def check_alive(self) -> None:
        """Refuse a request when the engine is gone, before any work is done for it."""
        failure = self.client.failure
        if failure is not None:
            raise unavailable(failure)


def _limits(client: EngineClient) -> Limits:
    engines = client.engines
    return Limits(
        min(engine.max_model_len for engine in engines),
        min(engine.vocab_size for engine in engines),
        frozenset.intersection(*(frozenset(engine.features) for engine in engines)),
    )
