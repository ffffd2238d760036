# SPDX-License-Identifier: MIT
"""What the server tells of itself: models, health, versions, and its live state for the page."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from attrs import frozen
from starlette.requests import Request
from starlette.responses import Response

from tokenspeed_hookspecs import EngineInfo, Load
from tokenspeed_openai.deployment import Deployment
from tokenspeed_openai.responses import (
    Composition,
    Counted,
    EngineState,
    Health,
    ModelCard,
    ModelList,
    PhaseHooks,
    PluginState,
    Stats,
    Version,
)
from tokenspeed_openai.tokens import json_response

DISTRIBUTION = "tokenspeed-openai"
PHASES: Mapping[str, Sequence[str]] = {
    "composition": (
        "check_config",
        "configure_scheduler",
        "configure_model",
        "extend_data_plane",
        "admission_stages",
        "control_operations",
        "announce",
        "instruments",
        "cli_commands",
        "start",
        "stop",
    ),
    "admission": ("round_report", "validate_request", "request_aborted"),
    "storage": ("storage_tick",),
    "plan and dispatch": ("planned", "dispatch"),
    "commit": ("committed", "poll_events", "forward_done"),
    "drain": ("scheduler_events", "drain_blocked", "refuse_release", "busy"),
    "observers": ("request_finished", "iteration", "round_done"),
}


@frozen
class StateApi:
    """The endpoints that change nothing."""

    deployment: Deployment

    async def page(self, request: Request) -> Response:
        """The page that shows all this."""
        page = files("tokenspeed_openai").joinpath("web", "page.html").read_bytes()
        return Response(page, media_type="text/html", headers=PAGE_HEADERS)

    async def models(self, request: Request) -> Response:
        """The one model."""
        return json_response(ModelList(data=[self._card()]))

    async def model(self, request: Request) -> Response:
        """One model by its name."""
        self.deployment.check_model(request.path_params["model"])
        return json_response(self._card())

    async def health(self, request: Request) -> Response:
        """Whether requests can run; a 503 once an engine has died."""
        failure = self.deployment.client.failure
        if failure is None:
            return json_response(Health(status="ok"))
        return json_response(Health(status="failed", reason=str(failure)), status=503)

    async def ping(self, request: Request) -> Response:
        """Whether the server answers."""
        return Response(b"{}", media_type="application/json")

    async def version(self, request: Request) -> Response:
        """The versions of engine and server."""
        engine = self.deployment.client.engines[0].version
        return json_response(Version(version=engine, server=server_version()))

    async def stats(self, request: Request) -> Response:
        """What runs now, and what was counted."""
        client, counters = self.deployment.client, self.deployment.counters
        failure = client.failure
        engines = zip(client.engines, client.loads, strict=True)
        stats = Stats(
            model=self.deployment.model,
            uptime_s=time.time() - self.deployment.started_at,
            failure=None if failure is None else str(failure),
            # The engines run nothing for others, and tell of no request that left them silently.
            engines=[
                _engine_state(engine, load, is_idle=not counters.open_choices)
                for engine, load in engines
            ],
            counters=Counted(
                requests=counters.requests,
                choices=counters.choices,
                open_choices=counters.open_choices,
                prompt_tokens=counters.prompt_tokens,
                cached_tokens=counters.cached_tokens,
                completion_tokens=counters.completion_tokens,
                finished=dict(counters.finished),
            ),
        )
        return json_response(stats)

    async def composition(self, request: Request) -> Response:
        """What the engine is composed of; options are left out, since some are secrets."""
        found = self.deployment.context.composition
        plugins = [_plugin_state(row) for row in found.get("plugins", ())]
        return json_response(
            Composition(
                model=self.deployment.context.model,
                plugins=plugins,
                hooks=_by_phase(found.get("hooks", {})),
            )
        )

    def _card(self) -> ModelCard:
        deployment = self.deployment
        return ModelCard(
            id=deployment.model,
            created=int(deployment.started_at),
            root=deployment.context.model,
            max_model_len=deployment.limits.max_model_len,
        )


PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; connect-src 'self'; img-src data:; frame-ancestors 'none'",
    "Cache-Control": "no-cache",
}


def server_version() -> str:
    """This distribution's."""
    return version(DISTRIBUTION)


def _engine_state(engine: EngineInfo, load: Load | None, *, is_idle: bool) -> EngineState:
    return EngineState(
        index=engine.index,
        model=engine.model,
        version=engine.version,
        dtype=engine.dtype,
        max_model_len=engine.max_model_len,
        max_num_seqs=engine.max_num_seqs,
        page_size=engine.page_size,
        features=list(engine.features),
        running=load.running - load.waiting if load and not is_idle else 0,
        waiting=load.waiting if load and not is_idle else 0,
        active_pages=load.active_pages if load else 0,
        total_pages=load.total_pages if load else engine.num_pages,
    )


def _plugin_state(row: Mapping[str, Any]) -> PluginState:
    return PluginState(
        name=str(row.get("name", "")),
        state=str(row.get("state", "")),
        version=str(row.get("version", "")),
        source=str(row.get("source", "")),
        reasons=[str(reason) for reason in row.get("reasons", ())],
        hooks=[str(hook) for hook in row.get("hooks", ())],
    )


def _by_phase(hooks: Mapping[str, Sequence[str]]) -> list[PhaseHooks]:
    """The hooks that somebody implements, in the order of a round; new ones come last."""
    known = {hook for names in PHASES.values() for hook in names}
    phases = {**PHASES, "other": [hook for hook in hooks if hook not in known]}
    found = {
        phase: {hook: list(hooks[hook]) for hook in names if hook in hooks}
        for phase, names in phases.items()
    }
    return [PhaseHooks(phase=phase, hooks=each) for phase, each in found.items() if each]
