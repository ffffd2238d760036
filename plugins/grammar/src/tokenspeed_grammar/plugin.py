# SPDX-License-Identifier: MIT
"""The plugin: claims the features, compiles during admission, constrains on the data plane."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from attrs import field, frozen

from tokenspeed_grammar.flags import REQUEST_FLAGS
from tokenspeed_grammar.keys import FEATURES, REASONING, GrammarKey, key_of
from tokenspeed_grammar.reasoning import FAMILIES
from tokenspeed_hookspecs import (
    AdmissionStage,
    DataPlane,
    DataPlaneExtension,
    Engine,
    Plugin,
    Refuse,
    Request,
    RequestFlag,
    Round,
    hookimpl,
)

if TYPE_CHECKING:
    from tokenspeed_grammar.backend import Backend, CompiledGrammar, Matcher, Vocabulary
    from tokenspeed_grammar.pool import CompilePool

CLIENT_ERROR = 400
LEAST_THREADS, MOST_THREADS = 2, 4
MIB = 1 << 20


def _option(default: Any, words: str) -> Any:
    return field(default=default, metadata={"help": words})


class GrammarPlugin(Plugin):
    """Structured output: `json_schema`, `json_object`, `regex`, `ebnf`, `structural_tag`, and other
    servers' names for them; `reasoning` says whose thinking comes before it."""

    name: ClassVar[str] = "grammar"
    features: ClassVar[tuple[str, ...]] = (*FEATURES, REASONING)
    request_flags: ClassVar[tuple[RequestFlag, ...]] = REQUEST_FLAGS

    @frozen(kw_only=True)
    class Options:
        """How grammars are compiled, and what one may cost."""

        backend: str = _option("llguidance", "what compiles grammars, an installed backend")
        compile_timeout_s: float = _option(30.0, "how long a compile may take, from its start")
        max_retries: int = _option(2, "timeouts of a grammar after which it is refused for good")
        whitespace: str = _option(
            "some", "between JSON tokens: none, some (a line's indentation) or any"
        )
        cache_limit_mib: int = _option(512, "memory for compiled grammars, about")
        threads: int = _option(0, "threads that compile; 0 is one a core but one, two to four")
        queue_limit: int = _option(256, "how many requests may wait for their grammars")
        max_source_bytes: int = _option(MIB, "the longest source")
        max_depth: int = _option(64, "how deep a schema may be nested")
        reasoning_parser: str | None = _option(
            None, f"whose thinking comes before constrained text: {', '.join(FAMILIES)}"
        )

    def __init__(self, options: Options, engine: Engine) -> None:
        super().__init__(options, engine)
        self._unsent: dict[str, tuple[Request, Matcher]] = {}

    @hookimpl
    def check_config(self, config: Mapping[str, Any]) -> Sequence[str]:
        from tokenspeed_grammar.backend import Whitespace, load_backend

        problems = []
        choices = [each.value for each in Whitespace]
        if self.options.whitespace not in choices:
            told = f"expected one of {', '.join(choices)}, got {self.options.whitespace!r}"
            problems.append(f"grammar.whitespace: {told}")
        family = self.options.reasoning_parser
        if family is not None and family not in FAMILIES:
            told = f"expected one of {', '.join(FAMILIES)}, got {family!r}"
            problems.append(f"grammar.reasoning_parser: {told}")
        if self.engine.tokenizer is None:
            problems.append("grammars need the model's tokenizer, and this engine has none")
        try:
            load_backend(self.options.backend)
        except ValueError as error:
            problems.append(f"grammar.backend: {error}")
        return problems

    @hookimpl
    def extend_data_plane(self, plane: DataPlane) -> Sequence[DataPlaneExtension]:
        from tokenspeed_grammar.live import LiveGrammars

        ranks = self.engine.ranks
        num_stages = 1 if ranks.pp is None else ranks.pp.size
        live = LiveGrammars(
            self._backend,
            self._vocabulary,
            self.engine.log,
            is_alone=ranks.replica.size == num_stages,
        )
        if plane.kind == "torch":
            from tokenspeed_grammar.torch_extension import TorchGrammar

            return [TorchGrammar(self.name, live)]
        if plane.kind == "scripted":
            from tokenspeed_grammar.scripted_extension import ScriptedGrammar

            return [ScriptedGrammar(self.name, live)]
        raise ValueError(f"grammar knows the data planes torch and scripted, got {plane.kind!r}")

    @hookimpl
    def admission_stages(self) -> Sequence[AdmissionStage]:
        from tokenspeed_grammar.cache import GrammarCache
        from tokenspeed_grammar.stage import GrammarStage

        options = self.options
        cache = GrammarCache(
            self._pool,
            self.engine.clock,
            limit_bytes=options.cache_limit_mib * MIB,
            timeout_s=options.compile_timeout_s,
            max_retries=options.max_retries,
        )
        replica = self.engine.ranks.replica
        return [
            GrammarStage(
                self.name,
                cache,
                replica,
                attach=self._attach,
                queue_limit=options.queue_limit,
                key_of=self._key_of,
            )
        ]

    @hookimpl
    def start(self) -> None:
        self._pool.start()

    @hookimpl
    def stop(self) -> None:
        self._pool.stop()

    @hookimpl
    def validate_request(self, round: Round) -> Refuse | None:
        request = round.candidate
        assert request is not None, "asked about a candidate"
        try:
            key = self._key_of(request.features)
        except ValueError as error:
            return Refuse(f"Invalid request: {error}", CLIENT_ERROR)
        limit = self.options.max_source_bytes
        if key is not None and len(key.source) > limit:
            text = f"a grammar's source may have {limit} bytes, got {len(key.source)}"
            return Refuse(f"Invalid request: {text}", CLIENT_ERROR)
        return None

    @hookimpl
    def dispatch(self, round: Round) -> None:
        if not self._unsent:
            return
        assert round.dispatch is not None, "a dispatch has its inputs"
        unsent, self._unsent = self._unsent, {}
        round.dispatch.inputs[self.name] = [
            (request_id, matcher)
            for request_id, (request, matcher) in unsent.items()
            if request.finish_reason is None
        ]

    def _key_of(self, features: Mapping[str, object]) -> GrammarKey | None:
        return key_of(features, reasoning_parser=self.options.reasoning_parser)

    def _attach(self, request: Request, compiled: CompiledGrammar) -> None:
        """Give a request its matcher, with the next forward: any of its own comes later."""
        self._unsent[request.request_id] = (request, compiled.matcher())

    @cached_property
    def _pool(self) -> CompilePool:
        from tokenspeed_grammar.pool import CompilePool

        # A core is left to the loop, whose rounds are shorter than a compile's turn on one; and one
        # compile that is stuck is not to keep all others waiting.
        spare = max(LEAST_THREADS, min((os.cpu_count() or 1) - 1, MOST_THREADS))
        threads = int(self.options.threads) or spare
        return CompilePool(self._compile, self.engine.clock, threads)

    def _compile(self, key: GrammarKey) -> CompiledGrammar:
        """Runs on the pool's threads."""
        from tokenspeed_grammar.limits import check_depth
        from tokenspeed_grammar.wrapping import wrapped

        check_depth(key.kind, key.source, most=self.options.max_depth)
        key = wrapped(key)
        return self._backend.compile(key.kind, key.source)

    @cached_property
    def _backend(self) -> Backend:
        from tokenspeed_grammar.backend import BackendSettings, Whitespace, load_backend

        options = self.options
        settings = BackendSettings(Whitespace(options.whitespace), self._num_threads)
        return load_backend(options.backend)(self._vocabulary, settings)

    @property
    def _num_threads(self) -> int:
        return int(self.options.threads) or min(os.cpu_count() or 1, MOST_THREADS)

    @cached_property
    def _vocabulary(self) -> Vocabulary:
        from tokenspeed_grammar.backend import Vocabulary

        model, tokenizer = self.engine.model, self.engine.tokenizer
        assert tokenizer is not None, "check_config asked for it"
        return Vocabulary(tokenizer, model.vocab_size, tuple(model.eos_token_ids))
