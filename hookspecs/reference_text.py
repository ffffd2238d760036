# SPDX-License-Identifier: MIT
"""The contract as a page for people who write plugins."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import attrs
from contract_surface import class_attributes, fields, members, public, signature

from tokenspeed_hookspecs import API_VERSION, Plugin

SECTION = re.compile(r"# --- (.+?) -+$")
HOOK = re.compile(r"    def (\w+)\(")
EXAMPLE = re.compile(r"Example: `(.+?)`", re.DOTALL)

INTRODUCTION = f"""\
# tokenspeed-hookspecs

The contract between the engine and its plugins: every hook, record and protocol a plugin may
use. It needs neither torch nor the engine. Its version is the version of the plugin API, now
{API_VERSION}: depend on `tokenspeed-hookspecs>=1,<2`.

This page is generated from the contract by `python hookspecs/generate_reference.py`.

## A plugin

```python
from attrs import frozen

from tokenspeed_hookspecs import Engine, Plugin, Refuse, Round, hookimpl


class ShortPrompts(Plugin):
    \"\"\"Refuses prompts that are too long.\"\"\"

    name = "short_prompts"

    @frozen
    class Options:
        limit: int = 1000

    @hookimpl
    def validate_request(self, round: Round) -> Refuse | None:
        assert round.candidate is not None, "it is there in this hook"
        if len(round.candidate.prompt_ids) <= self.options.limit:
            return None
        return Refuse(f"at most {{self.options.limit}} tokens are allowed", 400)
```

Its package names it in `pyproject.toml`; `name` and the entry point's name are the same:

```toml
[project.entry-points."tokenspeed.plugins"]
short_prompts = "tokenspeed_short_prompts:ShortPrompts"
```

`Options` becomes the flag `--short-prompts-limit` and the TOML table `[short_prompts]`. A
field's metadata may hold `help`, `choices` and `minimum`.

- A **participant** changes what happens: its decision must be the same on every rank of the
  replica, and an exception in it ends the engine on all of them.
- An **observer** watches: an exception is logged once and counted; after three in a row the
  observer is switched off, and serving goes on.
- Hooks take exactly the arguments below, by the same names; `@hookimpl(wrapper=True)` and the
  other options of pluggy work as in pluggy. `round_report`, `start` and `stop` take no wrapper.
"""


def readme() -> str:
    """Return the whole page."""
    parts = [INTRODUCTION, "## Hooks\n", hook_table()]
    parts += [hook_text(name, function) for name, function in hooks().items()]
    attributes = "\n".join(f"- `{line}`" for line in class_attributes(Plugin))
    parts.append(f"## The plugin class\n\n{inspect.getdoc(Plugin)}\n\n{attributes}\n")
    records = {name: each for name, each in public().items() if attrs.has(each)}
    parts += [
        "## Records\n",
        *(class_text(name, each, first=fields(each)) for name, each in records.items()),
    ]
    protocols = {n: each for n, each in public().items() if getattr(each, "_is_protocol", False)}
    parts.append("## Protocols\n")
    parts += [class_text(name, each, first=[]) for name, each in protocols.items()]
    return "\n".join(parts)


def hooks() -> dict[str, Callable[..., Any]]:
    """Return the hooks, in the order they are written down."""
    marked = vars(Plugin).items()
    return {name: each for name, each in marked if hasattr(each, "tokenspeed_spec")}


def sections() -> dict[str, str]:
    """Return each hook's part of the engine's life, from the comments between the hooks."""
    found: dict[str, str] = {}
    section = ""
    for line in inspect.getsource(Plugin).splitlines():
        if heading := SECTION.search(line):
            section = heading.group(1)
        elif method := HOOK.match(line):
            found[method.group(1)] = section
    return found


def hook_table() -> str:
    """Return the hooks as a table: when, name, mode, arguments, result."""
    when = sections()
    rows = ["| when | hook | mode | arguments | returns |", "| --- | --- | --- | --- | --- |"]
    for name, function in hooks().items():
        cells = (when[name], f"`{name}`", mode_text(function), *_typed(function))
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows) + "\n"


def mode_text(function: Any) -> str:
    """Return a hook's mode in words."""
    first = ", first answer" if function.tokenspeed_spec["firstresult"] else ""
    return str(function.tokenspeed_mode.value) + first


def _typed(function: Callable[..., Any]) -> tuple[str, str]:
    types = dict(inspect.get_annotations(function))
    result = str(types.pop("return"))
    arguments = ", ".join(f"`{name}: {text}`" for name, text in types.items())
    return arguments or "–", f"`{result}`".replace("|", "\\|")


def hook_text(name: str, function: Callable[..., Any]) -> str:
    """Return a hook's contract and its example."""
    text = inspect.getdoc(function) or ""
    example = EXAMPLE.search(text)
    body = EXAMPLE.sub("", text).strip()
    shown = f"\n\nFor example: `{' '.join(example.group(1).split())}`" if example else ""
    head = f"`{name}{signature(function)}`, {mode_text(function)}"
    return f"### {name}\n\n{head}\n\n{body}{shown}\n"


def class_text(name: str, owner: type, *, first: list[str]) -> str:
    """Return a record's or protocol's text and what it holds, a line each."""
    text = inspect.getdoc(owner) or ""
    held = [*(_item(line, "") for line in first), *(_item(*each) for each in members(owner))]
    return f"### {name}\n\n{text}\n" + "".join(f"\n{each}" for each in held) + "\n" * bool(held)


def _item(line: str, told: str) -> str:
    return f"- `{line}`" + (f": {' '.join(told.split())}" if told else "")
