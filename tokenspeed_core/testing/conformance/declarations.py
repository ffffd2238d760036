# SPDX-License-Identifier: MIT
"""What can be told from the class alone: its hooks, its options, and where it is imported from."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
from typing import Any

import attrs
import tomli_w

from tokenspeed_core.composition.api_range import api_problems
from tokenspeed_core.composition.plugin_class import load
from tokenspeed_core.config import add_flags, add_table_flags
from tokenspeed_core.config.flags import CONFIG_DEST
from tokenspeed_core.config.tables import fields, from_table, to_table
from tokenspeed_core.config.values import encode
from tokenspeed_core.errors import CompositionError
from tokenspeed_core.testing.conformance.subject import Subject
from tokenspeed_hookspecs import CliCommand, Plugin

IMPORT_LIMIT_S = 60
# Run in a new interpreter: everything that is there after the import came with it. A thread that is
# started at import would keep that interpreter from ending, hence os._exit.
PROBE = """
import importlib, importlib.util, json, os, sys, threading
kept = os.dup(1)
said = os.memfd_create("said")
os.dup2(said, 1)
open_before = len(os.listdir("/proc/self/fd"))
module, file = sys.argv[1:3]
try:
    importlib.import_module(module)
except ImportError:
    spec = importlib.util.spec_from_file_location(module, file)
    found = sys.modules[module] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
sys.stdout.flush()
links = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
told = json.dumps({
    "modules": sorted(sys.modules),
    "threads": [t.name for t in threading.enumerate() if t is not threading.main_thread()],
    "opened": len(links) - open_before,
    "sockets": sum("socket:" in link for link in links),
    "said": os.pread(said, 200, 0).decode(errors="replace"),
})
os.write(kept, told.encode())
os._exit(0)
"""
HEAVY = ("torch", "tensorflow", "jax", "cupy", "triton", "transformers", "numba", "pandas", "scipy")


def check_class(subject: Subject) -> list[str]:
    """Name, version range, hooks and annotations, as composition checks them."""
    problems = api_problems(getattr(subject.plugin, "api", ""))
    try:
        load(subject.candidate, subject.options)
    except CompositionError as error:
        mark = f"plugin {subject.candidate.name!r}: "
        problems += [each.removeprefix(mark) for each in error.problems]
    return list(dict.fromkeys(problems))


def check_import(subject: Subject) -> list[str]:
    """Importing the class's module loads nothing heavy and starts nothing."""
    address = subject.address
    if address is None:
        return []
    command = [sys.executable, "-c", PROBE, address.module, address.file]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=IMPORT_LIMIT_S
    )
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no word"]
        return [f"module {address.module} cannot be imported alone: {last[0]}"]
    told = json.loads(done.stdout)
    module = f"importing {address.module}"
    problems = [f"{module} imports {name}" for name in HEAVY if name in told["modules"]]
    if told["threads"]:
        problems.append(f"{module} starts a thread: {', '.join(told['threads'])}")
    if told["sockets"]:
        problems.append(f"{module} opens a socket")
    elif told["opened"] > 0:
        problems.append(f"{module} leaves {told['opened']} files open")
    if told["said"]:
        problems.append(f"{module} writes to standard output: {told['said'].strip()[:60]!r}")
    is_ours = address.module.startswith("tokenspeed_core")
    if subject.source is not None and not is_ours and "tokenspeed_core" in told["modules"]:
        problems.append(f"{module} imports the engine; a plugin needs tokenspeed_hookspecs only")
    return problems


def check_options(subject: Subject) -> list[str]:
    """The options come back the same from a TOML table and from flags, each with a help text."""
    options = subject.plugin.Options
    if not attrs.has(options):
        return []  # the class check tells
    try:
        given = from_table(options, subject.options, place=subject.name)
    except CompositionError as error:
        return error.problems
    keys = fields(options)
    problems = [
        f'option {key!r} has no help; write field(metadata={{"help": "..."}})'
        for key, each in keys.items()
        if not each.metadata.get("help")
    ]
    return problems + _toml_problems(subject, given) + _flag_problems(subject, given)


def _toml_problems(subject: Subject, given: Any) -> list[str]:
    table = encode(to_table(given))
    try:
        read = tomllib.loads(tomli_w.dumps(table))
        again = from_table(subject.plugin.Options, read, place=subject.name)
    except (CompositionError, TypeError, ValueError) as error:
        told = "; ".join(error.problems) if isinstance(error, CompositionError) else str(error)
        return [f"the options have no form in TOML: {told}"]
    return _differences(given, again, way="TOML")


def _flag_problems(subject: Subject, given: Any) -> list[str]:
    """Each option as its flag, where it has one, beside the engine's own flags."""
    parser = argparse.ArgumentParser(add_help=True, allow_abbrev=False)
    add_flags(parser)
    options = subject.plugin.Options
    try:
        add_table_flags(parser, options, table=subject.name, prefix=f"{subject.name}_")
    except argparse.ArgumentError as error:
        return [f"an option cannot be a flag: {error}"]
    table = encode(to_table(given))
    words = []
    for action in parser._actions:  # argparse has no public list of its flags
        owner, _, key = action.dest.partition(".")
        if owner != subject.name or table.get(key) is None:
            continue
        value = table[key]
        if isinstance(value, bool):
            words.append(action.option_strings[0 if value else 1])
        else:
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            words.append(f"{action.option_strings[0]}={text}")
    try:
        parsed = vars(parser.parse_args(words))
        parsed.pop(CONFIG_DEST, None)
        prefix = f"{subject.name}."
        read = {k.removeprefix(prefix): v for k, v in parsed.items() if k.startswith(prefix)}
        tables = {key: value for key, value in table.items() if isinstance(value, dict)}
        again = from_table(options, {**tables, **read}, place=subject.name)
    except (CompositionError, SystemExit) as error:
        return [f"the options cannot be given as flags {words}: {error}"]
    return _differences(given, again, way="flags")


def _differences(given: Any, again: Any, *, way: str) -> list[str]:
    keys = fields(type(given))
    pairs = {k: (getattr(given, a.name), getattr(again, a.name)) for k, a in keys.items()}
    return [
        f"option {key!r} does not come back from {way}: {was!r} became {came!r}"
        for key, (was, came) in pairs.items()
        if was != came
    ]


def check_commands(subject: Subject) -> list[str]:
    """Its subcommands and request flags can be listed without an engine."""
    plugin, problems = subject.plugin, []
    for flag in plugin.request_flags:
        if flag.feature not in plugin.features:
            problems.append(
                f"request flag --{flag.name} sets feature {flag.feature!r}, which the plugin does "
                f"not claim in `features`"
            )
    if plugin.cli_commands is Plugin.cli_commands:
        return problems
    try:
        commands = plugin.cli_commands(plugin)  # type: ignore[arg-type]  # asked of the class
    except Exception as error:
        text = f"cli_commands needs an instance ({type(error).__name__}: {error})"
        return [*problems, f"{text}; it is asked of the class, without an engine"]
    if not all(isinstance(each, CliCommand) for each in commands):
        problems.append(f"cli_commands returned {commands!r}, not a list of CliCommand")
    return problems
