# SPDX-License-Identifier: MIT
"""Tool calls of a real model over HTTP, at temperature 1: each must follow the tool that it names.

A server is asked with different tools, to call any of them, one by its name, and at most one; whole
and streamed. A call that ended must parse and be valid by its tool's schema, and a stream must say
what the whole answer of the same seed says.

    python plugins/grammar/tests/benchmarks/tool_calls.py [--model smollm2-135m] [--seeds 4]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

import jsonschema_rs
from attrs import frozen

TEXT = {"type": "string", "maxLength": 12}


def _object(*required: str, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


POINT = {
    "type": "array",
    "prefixItems": [{"type": "integer", "minimum": -90, "maximum": 90}] * 2,
    "items": False,
    "minItems": 2,
}
NODE = _object("name", name=TEXT, inside={"anyOf": [{"type": "null"}, {"$ref": "#"}]})
TOOLS: dict[str, dict[str, Any]] = {
    "find_city": {
        **_object("name", "at", name=TEXT, at={"$ref": "#/$defs/point"}),
        "$defs": {"point": POINT},
    },
    "write_note": _object("text", text=TEXT, due={"type": "string", "format": "date"}),
    "set_light": _object(
        "room",
        "level",
        room={"enum": ["kitchen", "hall", "Küche"]},
        level={"type": "integer", "minimum": 0, "maximum": 9},
    ),
    "send_money": _object(
        "to",
        "sum",
        to={"type": "string", "pattern": "^[A-Z]{2}[0-9]{6}$"},
        sum={"type": "number", "minimum": 0, "maximum": 99},
    ),
    "tag": _object(
        "tags",
        tags={"type": "array", "items": {"enum": ["a", "b", "c"]}, "minItems": 1, "maxItems": 3},
    ),
    "put_inside": NODE,
    "now": {"type": "object", "properties": {}, "additionalProperties": False},
}


def tell(line: str) -> None:
    """Print at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@frozen
class Case:
    """Which tools a request has, and what it must do with them."""

    name: str
    tools: tuple[str, ...]
    choice: Any
    most_calls: int | None = None

    def body(self, model: str, seed: int) -> dict[str, Any]:
        """The request."""
        functions = [{"name": name, "parameters": TOOLS[name]} for name in self.tools]
        return {
            "model": model,
            "messages": [{"role": "user", "content": f"Do something useful ({seed})."}],
            "tools": [{"type": "function", "function": each} for each in functions],
            "tool_choice": self.choice,
            "parallel_tool_calls": self.most_calls is None,
            "temperature": 1.0,
            "seed": seed,
            "max_tokens": 160,
        }


def cases() -> list[Case]:
    """Every tool by its name, and some of them together."""
    named = [
        Case(name, tuple(TOOLS), {"type": "function", "function": {"name": name}}) for name in TOOLS
    ]
    return [
        *named,
        Case("any", tuple(TOOLS), "required"),
        Case("one of two", ("find_city", "set_light"), "required", most_calls=1),
        Case("the only one", ("put_inside",), "required", most_calls=1),
    ]


@frozen
class Told:
    """An answer: its calls as names and arguments, and why it ended."""

    calls: tuple[tuple[str, str], ...]
    finish: str


@contextmanager
def served(model: str) -> Iterator[str]:
    """A server of the model with the plugin; its address."""
    command = [sys.executable, "-m", "tokenspeed_core", "serve", model, "--port", "0"]
    # Nobody reads what it would log.
    command += ["--plugins", "grammar", "--without", "batch_log,finish_line"]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert server.stderr is not None
    try:
        yield _served_at(server.stderr)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def _served_at(lines: IO[str]) -> str:
    for line in lines:
        if line.startswith("try: "):
            return line[line.index("http") :].split("/v1")[0]
    raise AssertionError("the server ended before it said where it listens")


def ask(url: str, body: dict[str, Any]) -> Told:
    """An answer, whole or streamed."""
    asked = urllib.request.Request(
        f"{url}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(asked, timeout=300) as answer:
        if body.get("stream"):
            return _joined(answer)
        (choice,) = json.load(answer)["choices"]
    calls = choice["message"].get("tool_calls") or []
    functions = [call["function"] for call in calls]
    told = tuple((each["name"], each["arguments"]) for each in functions)
    return Told(told, choice["finish_reason"])


def _joined(lines: Any) -> Told:
    names: dict[int, str] = {}
    arguments: dict[int, str] = {}
    finish = ""
    for line in lines:
        data = line.decode().removeprefix("data: ").strip()
        if not data or data == "[DONE]":
            continue
        (choice,) = json.loads(data)["choices"]
        finish = choice["finish_reason"] or finish
        for call in choice["delta"].get("tool_calls") or ():
            function, index = call["function"], call["index"]
            names.setdefault(index, function.get("name", ""))
            arguments[index] = arguments.get(index, "") + function["arguments"]
    return Told(tuple((names[index], arguments[index]) for index in names), finish)


def wrong_in(case: Case, told: Told) -> str | None:
    """What is wrong with an answer that ended."""
    if not told.calls or told.finish != "tool_calls":
        return f"no call, ended by {told.finish}"
    if case.most_calls is not None and len(told.calls) > case.most_calls:
        return f"{len(told.calls)} calls"
    for name, arguments in told.calls:
        if name not in case.tools:
            return f"calls {name}"
        if isinstance(case.choice, dict) and name != case.name:
            return f"calls {name} instead of {case.name}"
        checker = jsonschema_rs.validator_for(TOOLS[name], validate_formats=True)
        try:
            if not checker.is_valid(json.loads(arguments)):
                return f"{name} has no use for {arguments}"
        except ValueError:
            return f"{arguments!r} is no JSON"
    return None


def check(url: str, model: str, *, seeds: int) -> Counter[str]:
    """Ask everything; how many answers there were of each kind."""
    found: Counter[str] = Counter()
    for case in cases():
        for seed in range(seeds):
            body = case.body(model, seed)
            whole, streamed = ask(url, body), ask(url, {**body, "stream": True})
            if whole.finish == "length":
                found["cut by their budgets"] += 1
                continue
            problem = wrong_in(case, whole)
            if problem is None and streamed != whole:
                problem = f"the stream says {streamed}, and the whole {whole}"
            found["wrong" if problem else "right, whole and streamed"] += 1
            if problem:
                tell(f"WRONG: {case.name}, seed {seed}: {problem}")
            elif seed == 0:
                told = ", ".join(f"{name}({arguments})" for name, arguments in whole.calls)
                tell(f"{case.name}: {told}")
    return found


def main() -> None:
    """Ask and print; the status is 1 if a call does not follow its tool."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--seeds", type=int, default=4)
    given = parser.parse_args()
    with served(given.model) as url:
        found = check(url, given.model, seeds=given.seeds)
    tell(f"answers with calls: {dict(found)}")
    sys.exit(found["wrong"] > 0 or not found["right, whole and streamed"])


if __name__ == "__main__":
    main()
