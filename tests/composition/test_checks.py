# SPDX-License-Identifier: MIT
"""Checks before anything starts: every problem of every plugin, in one report."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import pytest
from attrs import frozen

from tokenspeed_core.composition.api_range import api_problems
from tokenspeed_core.composition.resolve import resolve
from tokenspeed_core.composition.signatures import hook_specs, signature_problems
from tokenspeed_core.config import EngineConfig
from tokenspeed_core.errors import CompositionError
from tokenspeed_core.testing.site import Site
from tokenspeed_hookspecs import (
    API_VERSION,
    AdmissionStage,
    Plugin,
    Refuse,
    Round,
    StorageTick,
    hookimpl,
)


def problems(*plugins: type[Plugin], **config: Any) -> list[str]:
    """What composing these plugins reports."""
    try:
        resolve(EngineConfig(**config), plugins)
    except CompositionError as error:
        return error.problems
    return []


def of_methods(**methods: Any) -> list[str]:
    """What the signature check says of a plugin with these methods."""
    return signature_problems(type("Tried", (Plugin,), {"name": "tried", **methods}))


# --- hooks -------------------------------------------------------------------------------------


def test_an_unknown_hook_is_reported_with_the_nearest() -> None:
    """A misspelt hook names the right one."""

    @hookimpl
    def planed(self: Plugin, round: Round) -> None: ...

    (problem,) = of_methods(planed=planed)
    assert problem.startswith("unknown hook 'planed'; did you mean 'planned'?")


def test_an_optional_hook_may_be_unknown() -> None:
    """A plugin may implement a hook of a later contract, marked as pluggy marks it."""

    @hookimpl(optionalhook=True)
    def some_day(self: Plugin, round: Round) -> None: ...

    assert of_methods(some_day=some_day) == []


def test_a_hook_without_its_marker_is_reported() -> None:
    """A method named like a hook would never be called without `@hookimpl`."""

    def planned(self: Plugin, round: Round) -> None: ...

    assert of_methods(planned=planned) == ["planned has no @hookimpl and would never be called"]


def test_a_hook_may_have_another_method_name() -> None:
    """`specname` says which hook a method is."""

    @hookimpl(specname="planned")
    def on_plan(self: Plugin, round: Round) -> None: ...

    assert of_methods(on_plan=on_plan) == []


@pytest.mark.parametrize("hook", list(hook_specs()))
def test_wrong_arguments_are_reported(hook: str) -> None:
    """Every hook's argument names are compared, too few of them included."""

    def method(self: Plugin, wrong: Any) -> Any: ...

    wanted = ", ".join(hook_specs()[hook].arguments)
    found = of_methods(**{hook: hookimpl(method)})
    assert found == [f"{hook} takes (wrong), the hook has ({wanted})"]


def test_every_problem_of_a_method_is_reported() -> None:
    """Argument, annotation and result are three problems."""

    @hookimpl
    def busy(self: Plugin, round: int, more: str) -> str: ...  # type: ignore[empty-body]  # never called

    assert of_methods(busy=busy) == [
        "busy takes (round, more), the hook has (round)",
        "busy takes round: int, the hook has Round",
        "busy returns str, the hook bool",
    ]


class TestAnnotations:
    """What fits: wider arguments, narrower results, and what has no annotation."""

    def test_of_no_kind(self) -> None:
        """A method without annotations fits."""

        def planned(self, round):  # type: ignore[no-untyped-def]  # the point of the test
            ...

        assert of_methods(planned=hookimpl(planned)) == []

    def test_wider_and_narrower(self) -> None:
        """An argument may be an object, a result a list or one member of a union."""

        @hookimpl
        def check_config(self: Plugin, config: object) -> list[str]:
            return []

        @hookimpl
        def validate_request(self: Plugin, round: Round) -> Refuse:
            return Refuse("")

        @hookimpl
        def admission_stages(self: Plugin) -> tuple[AdmissionStage, ...]:
            return ()

        methods = (check_config, validate_request, admission_stages)
        assert of_methods(**{method.__name__: method for method in methods}) == []

    @pytest.mark.parametrize(
        ("hook", "result"),
        [
            ("check_config", Sequence[int]),
            ("validate_request", StorageTick | None),
            ("round_report", str),
            ("planned", bool),
        ],
    )
    def test_wrong_results(self, hook: str, result: Any) -> None:
        """A result of another type does not fit."""

        def method(self: Plugin, round: Any) -> None: ...

        def method_of_config(self: Plugin, config: Any) -> None: ...

        chosen = method_of_config if hook == "check_config" else method
        chosen.__annotations__["return"] = result
        (problem,) = of_methods(**{hook: hookimpl(chosen)})
        assert f"{hook} returns " in problem

    def test_unresolvable_names_count_by_their_last_part(self) -> None:
        """A type imported for type checkers only is compared as it is written."""

        def planned(self: Plugin, round: Any) -> None: ...

        planned.__annotations__ = {"round": "hooks.Round", "return": "None"}
        assert of_methods(planned=hookimpl(planned)) == []
        planned.__annotations__ = {"round": "hooks.Rund", "return": "None"}
        assert of_methods(planned=planned) == [
            "planned takes round: hooks.Rund, the hook has Round"
        ]


def test_async_and_generator_methods_are_reported() -> None:
    """A hook that would return a coroutine or a generator is a mistake."""

    @hookimpl
    async def planned(self: Plugin, round: Round) -> None: ...

    @hookimpl
    def poll_events(self: Plugin, round: Round) -> Iterator[object]:
        yield 1

    found = of_methods(planned=planned, poll_events=poll_events)
    assert any("planned is async" in problem for problem in found)
    assert any("poll_events yields, but is no wrapper" in problem for problem in found)


def test_old_wrappers_and_wrappers_of_owned_calls_are_reported() -> None:
    """Old-style wrappers skip others' teardowns; start and stop have no wrapper."""

    @hookimpl(hookwrapper=True)
    def planned(self: Plugin, round: Round) -> Generator[None, None, None]:
        yield

    @hookimpl(wrapper=True)
    def start(self: Plugin) -> Generator[None, object, object]:
        return (yield)

    assert of_methods(planned=planned, start=start) == [
        "planned is an old-style wrapper; use @hookimpl(wrapper=True)",
        "start cannot be wrapped: each plugin's own call counts",
    ]


# --- names, versions, claims, options --------------------------------------------------------


@pytest.mark.parametrize("name", ["Rates", "rate-limit", "", "9lives", "a__b", "engine", 7])
def test_a_wrong_name_is_reported(name: object) -> None:
    """A name is lower-case words joined by underscores, and no key of the engine's own."""
    assert problems(type("Tried", (Plugin,), {"name": name}))


def test_a_missing_name_is_reported() -> None:
    """A class without a name says how to set one."""
    assert "class Tried has no name" in problems(type("Tried", (Plugin,), {}))[0]


def test_entry_point_and_class_have_one_name(site: Site) -> None:
    """The two names are compared."""
    source = "from tokenspeed_hookspecs import Plugin\nclass Installed(Plugin): name = 'other'"
    site.install("rates", source=source)
    (problem,) = problems(plugins=("rates",))
    assert problem == "plugin 'rates': its entry point is 'rates', its class is named 'other'"


def test_two_classes_of_one_name_are_reported() -> None:
    """A name belongs to one class."""
    one, two = (type(each, (Plugin,), {"name": "same"}) for each in ("One", "Two"))
    assert problems(one, two) == ["plugin name 'same' is taken by several classes: One, Two"]


def test_a_feature_claimed_twice_is_reported() -> None:
    """A feature of requests belongs to one plugin."""
    one, two = (type(n, (Plugin,), {"name": n, "features": ("x",)}) for n in ("one", "two"))
    assert problems(one, two) == ["feature 'x' is claimed by several plugins: ['one', 'two']"]


@pytest.mark.parametrize(
    ("api", "requires", "text"),
    [
        (">=2", [], f"is written for API >=2, this engine has {API_VERSION}"),
        ("soon", [], "its api 'soon' is no version range"),
        (">=1", ["tokenspeed_hookspecs<0.9"], "its distribution requires tokenspeed_hookspecs<0.9"),
    ],
)
def test_an_unmet_version_is_reported(api: str, requires: list[str], text: str) -> None:
    """Both the class and its distribution say which contract they know."""
    (problem,) = api_problems(api, requires)
    assert text in problem


def test_a_met_version_is_no_problem() -> None:
    """The usual range fits, other requirements are not looked at."""
    assert api_problems(">=1,<2", ["numpy>=99", "tokenspeed-hookspecs>=1,<2", "not a need"]) == []


@pytest.mark.parametrize("key", ["after", "features"])
def test_a_text_is_no_tuple_of_names(key: str) -> None:
    """`after = "metrics"` is seven letters to Python, and a mistake here."""
    (problem,) = problems(type("Tried", (Plugin,), {"name": "tried", key: "metrics"}))
    assert problem == f"plugin 'tried': {key}: expected a tuple of names, got 'metrics'"


def test_a_table_without_a_plugin_is_reported(site: Site) -> None:
    """A table's name is that of a plugin; the nearest is named."""
    site.install("rates")
    (problem,) = problems(tables={"ratse": {}})
    assert problem.startswith("unknown table 'ratse'; did you mean 'rates'?")


def test_a_misspelt_table_of_the_engine_is_reported() -> None:
    """The engine's own tables are among the choices."""
    (problem,) = problems(tables={"engin": {}})
    assert problem.startswith("unknown table 'engin'; did you mean 'engine'?")


def test_a_table_of_an_installed_plugin_that_is_not_chosen_may_stay(site: Site) -> None:
    """Switching a plugin off does not mean deleting its settings."""
    site.install("rates")
    assert problems(tables={"rates": {"limit": 3}}) == []


def test_all_problems_are_in_one_report() -> None:
    """Options, hooks, cycles and unknown names of several plugins are reported together."""

    class One(Plugin):
        name = "one"
        after = ("two",)

        @frozen
        class Options:
            limit: int = 3

    class Two(Plugin):
        name = "two"
        after = ("one",)

    class Three(Plugin):
        name = "three"

        @hookimpl
        def plannd(self, round: Round) -> None: ...

    four = type("Four", (Plugin,), {"name": "four", "Options": int})
    config: Mapping[str, Any] = {"plugins": ("nobody",), "tables": {"two": {"limit": 4}}}
    text = "\n".join(problems(One, Two, Three, four, **config))
    for part in (
        "unknown plugin 'nobody'",
        "plugin 'two': two: unknown option 'limit'",
        "plugin 'three': unknown hook 'plannd'; did you mean 'planned'?",
        "plugin 'four': Options: expected an attrs class",
    ):
        assert part in text
