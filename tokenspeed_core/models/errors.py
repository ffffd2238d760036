# SPDX-License-Identifier: MIT
"""The one exception tree of the package that finds and reads models."""

from __future__ import annotations

from collections.abc import Sequence


class ModelError(Exception):
    """A model cannot be found, read or used; the message alone says which, where and why."""


class ChatTemplateError(ModelError, ValueError):
    """A conversation cannot be rendered: no template, or the template refused the messages."""


class TextError(ModelError, ValueError):
    """A text or a stop string cannot be turned into tokens or compared with them."""


def bullet_list(headline: str, problems: Sequence[str]) -> str:
    """Put several problems under one headline, one line each."""
    return "\n".join([headline, *(f"  - {problem}" for problem in problems)])
