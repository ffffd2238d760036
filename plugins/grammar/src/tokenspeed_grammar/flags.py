# SPDX-License-Identifier: MIT
"""How a request on the command line names its grammar."""

from __future__ import annotations

from pathlib import Path

from tokenspeed_hookspecs import RequestFlag


def read_file(name: str) -> str:
    """A file's text; ValueError if it cannot be read."""
    try:
        return Path(name).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"cannot read {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not UTF-8 text: {error}") from error


REQUEST_FLAGS = (
    RequestFlag(
        "json-schema",
        "json_schema",
        "answer with JSON that follows the schema in this file",
        read=read_file,
        metavar="FILE",
    ),
    RequestFlag("regex", "regex", "answer with a text that matches this pattern as a whole"),
    RequestFlag(
        "ebnf",
        "ebnf",
        "answer with a text of the grammar in this file",
        read=read_file,
        metavar="FILE",
    ),
    RequestFlag(
        "reasoning",
        "reasoning",
        "whose thinking comes before the constrained text, or off",
        metavar="FAMILY",
    ),
)
