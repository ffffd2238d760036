# SPDX-License-Identifier: MIT
"""What can go wrong, by who has to act."""

from __future__ import annotations


class EngineError(Exception):
    """Serving cannot go on: an invariant broke, a device or a peer failed."""


class PluginError(EngineError):
    """A participant raised in a hook; the engine ends on every rank, naming it."""

    def __init__(self, plugin: str, hook: str, *, round_number: int, cause: BaseException) -> None:
        super().__init__(
            f"plugin {plugin!r} failed in hook {hook} of round {round_number}: "
            f"{type(cause).__name__}: {cause}"
        )
        self.plugin = plugin
        self.hook = hook
        self.round_number = round_number


class CompositionError(Exception):
    """The engine cannot be composed as asked; `problems` lists every reason found."""

    def __init__(self, problems: list[str]) -> None:
        count = "1 problem" if len(problems) == 1 else f"{len(problems)} problems"
        super().__init__(f"{count}:\n" + "\n".join(f"  - {problem}" for problem in problems))
        self.problems = problems


class ConfigError(CompositionError):
    """An option, a flag or a key of a configuration file is not what it must be."""
