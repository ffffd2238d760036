# SPDX-License-Identifier: MIT
"""The JSON Schema Test Suite through the plugin: what is refused, and what its texts may be.

Every schema is a request to an engine: it is refused with status 400 and a reason, or its grammar
must let through each valid instance in some spelling (key order, 1 or 1.0) and each invalid one in
none. The suite is in the source distribution of `jsonschema`, which pip fetches unless a folder
that holds its `tests` is named.

    python plugins/grammar/tests/benchmarks/json_schema_suite.py [--suite FOLDER] [--show]
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve, frozen
from rich.console import Console
from rich.table import Table

from tokenspeed_core.testing.engine import EngineFixture, EngineSetup
from tokenspeed_core.testing.messages import request
from tokenspeed_core.testing.small_tokenizer import small_tokenizer
from tokenspeed_grammar.backend import (
    BackendSettings,
    CompiledGrammar,
    GrammarError,
    Vocabulary,
    load_backend,
)
from tokenspeed_grammar.plugin import GrammarPlugin

PACKAGE = "jsonschema==4.26.0"
VOCAB = 2048
UNHURRIED = {"compile_timeout_s": 600.0}
# The older drafts' files do not say which they are.
DIALECTS = {
    "draft2020-12": None,
    "draft2019-09": None,
    "draft7": "http://json-schema.org/draft-07/schema#",
    "draft6": "http://json-schema.org/draft-06/schema#",
    "draft4": "http://json-schema.org/draft-04/schema#",
}
MOST_KEYS, MOST_SPELLINGS, MOST_CHARACTERS = 4, 200, 5000
# What no text says although it would be valid, or is left to the reader by the standard.
NARROWER = {
    "optional/format/email.json": "addresses with quotes or brackets",
    "optional/format/ipv6.json": "addresses whose end is an IPv4 one",
}
OTHERWISE = {
    "format.json": "here formats assert",
    "optional/content.json": "contentEncoding and contentMediaType are notes",
    "optional/zeroTerminatedFloats.json": "1.0 is an integer, as in newer drafts",
}


@frozen
class Case:
    """A schema with instances: (description, value, whether it is valid)."""

    draft: str
    file: str
    description: str
    schema: Any
    instances: Sequence[tuple[str, Any, bool]]


def fetch(folder: Path) -> Path:
    """The suite's folder, fetched into this one."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
    command += ["--no-binary", "jsonschema", PACKAGE, "-d", str(folder)]
    subprocess.run(command, check=True)
    (archive,) = folder.glob("jsonschema-*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (found,) = folder.glob("jsonschema-*/json")
    return found


def read(suite: Path) -> Iterator[Case]:
    """Every case of the drafts."""
    for draft, dialect in DIALECTS.items():
        folder = suite / "tests" / draft
        for path in sorted(folder.rglob("*.json")):
            file = path.relative_to(folder).as_posix()
            groups = json.loads(path.read_text(encoding="utf-8"))
            yield from (_case(draft, file, group=group, dialect=dialect) for group in groups)


def _case(draft: str, file: str, *, group: dict[str, Any], dialect: str | None) -> Case:
    schema = group["schema"]
    if dialect is not None and isinstance(schema, dict):
        schema = {"$schema": dialect, **schema}
    instances = [(each["description"], each["data"], each["valid"]) for each in group["tests"]]
    return Case(draft, file, group["description"], schema, instances)


def spellings(value: Any) -> list[str]:
    """Texts that are this JSON value, some of them."""
    if isinstance(value, dict):
        names = list(value)
        orders = itertools.permutations(names) if len(names) <= MOST_KEYS else [tuple(names)]
        objects = (
            "{"
            + ",".join(f"{_text(name)}:{one}" for name, one in zip(order, ones, strict=True))
            + "}"
            for order in orders
            for ones in itertools.product(*[spellings(value[name])[:3] for name in order])
        )
        return list(itertools.islice(objects, MOST_SPELLINGS))
    if isinstance(value, list):
        parts = itertools.product(*[spellings(each)[:3] for each in value])
        return list(itertools.islice(("[" + ",".join(ones) + "]" for ones in parts), 60))
    texts = [_text(value), json.dumps(value)]
    if isinstance(value, float) and value.is_integer():
        texts.append(str(int(value)))
    elif type(value) is int:
        texts.append(f"{value}.0")
    return list(dict.fromkeys(texts))


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def follows(compiled: CompiledGrammar, text: str) -> bool:
    """Whether a text may be said and then end; the tokens are bytes."""
    matcher = compiled.matcher()
    told = text.encode("utf-8", "surrogatepass")
    return all(matcher.accept(byte) for byte in told) and matcher.can_end


def refusals(cases: Sequence[Case], backend: str) -> dict[int, tuple[int | None, str]]:
    """Status and reason of the cases whose requests the engine refuses, by their place."""
    setup = EngineSetup(
        plugins=(GrammarPlugin,),
        tables={"grammar": {"backend": backend, **UNHURRIED, "queue_limit": len(cases)}},
        tokenizer=small_tokenizer(vocab_size=VOCAB),
        plane={"vocab_size": VOCAB, "eos_token_ids": (VOCAB - 1,)},
    )
    engine = EngineFixture(setup)
    try:
        for place, case in enumerate(cases):
            source = {"json_schema": json.dumps(case.schema)}
            engine.put(evolve(request(str(place), 4, budget=1), features=source))
        received, wanted = engine.received, [str(place) for place in range(len(cases))]
        while not all(received[name].finish for name in wanted):
            engine.rounds(1)
            time.sleep(0.001)
        ends = {int(name): received[name].finish for name in wanted}
        aborts = [place for place in ends if received[str(place)].kind == "abort"]
        return {
            place: (end.status_code, end.message or "")
            for place in aborts
            if (end := ends[place]) is not None
        }
    finally:
        engine.rank.stop()


def judge(case: Case, compiled: CompiledGrammar, told: list[str]) -> Counter[str]:
    """How many instances the grammar treats right; the others are told."""
    found: Counter[str] = Counter()
    for description, value, is_valid in case.instances:
        if len(json.dumps(value)) > MOST_CHARACTERS:
            found["too long"] += 1
            continue
        is_said = any(follows(compiled, text) for text in spellings(value))
        if is_said == is_valid:
            verdict = "right"
        elif case.file in OTHERWISE:
            verdict = "read otherwise"
        elif is_valid and case.file in NARROWER:
            verdict = "narrower"
        else:
            verdict = "WRONG"
        found[verdict] += 1
        if verdict != "right":
            source = json.dumps(case.schema)[:300]
            place = f"{case.draft}/{case.file}: {case.description}: {description}"
            told.append(f"{verdict}: {place}: {json.dumps(value)[:80]} under {source}")
    return found


def main() -> None:
    """Count and print; the status is 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", type=Path, help="a folder of the suite; fetched by default")
    parser.add_argument("--backend", default="llguidance")
    parser.add_argument("--show", action="store_true", help="also what is not wrong but not right")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cases = list(read(given.suite or fetch(Path(folder))))
    vocabulary = Vocabulary(small_tokenizer(vocab_size=VOCAB), VOCAB, (VOCAB - 1,))
    backend = load_backend(given.backend)(vocabulary, BackendSettings())
    refused = refusals(cases, given.backend)
    counts: dict[str, Counter[str]] = {draft: Counter() for draft in DIALECTS}
    told: list[str] = []
    for place, case in enumerate(cases):
        try:
            compiled = backend.compile("json", json.dumps(case.schema))
        except GrammarError as error:
            status, reason = refused.get(place, (None, "not refused"))
            is_told = status == 400 and str(error) in reason
            counts[case.draft]["refused" if is_told else "WRONG"] += len(case.instances)
            if not is_told:
                told.append(f"WRONG: {case.file}: {case.description}: {status} {reason}")
        else:
            assert place not in refused, f"refused, and compiles: {case} {refused[place]}"
            counts[case.draft].update(judge(case, compiled, told))
    columns = sorted({name for found in counts.values() for name in found} | {"WRONG"})
    table = Table("instances", *columns)
    for draft, found in counts.items():
        table.add_row(draft, *[str(found[name]) for name in columns])
    console = Console(width=200)
    console.print(table)
    for line in told:
        if given.show or line.startswith("WRONG"):
            console.print(line, markup=False)
    sys.exit(any(found["WRONG"] for found in counts.values()))


if __name__ == "__main__":
    main()
