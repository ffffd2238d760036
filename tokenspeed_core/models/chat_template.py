# SPDX-License-Identifier: MIT
"""Rendering a conversation with the template that comes with a model.

A template is foreign code: it runs in Jinja's sandbox, which reaches no attribute of
ours and changes nothing. Filters, globals and whitespace rules are those `transformers`
gives its templates, so that the text comes out the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime

from jinja2 import Environment, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tokenspeed_core.models.errors import ChatTemplateError

Message = Mapping[str, object]


class ChatTemplate:
    """A compiled template, and the special tokens it may name (`bos_token`, ...)."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise ChatTemplateError(f"chat template does not compile: {error}") from error

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Return the conversation as one text.

        `variables` go to the template by name (`tools`, `enable_thinking`, ...). A
        ChatTemplateError carries what the template says is wrong with the messages.
        """
        names: dict[str, object] = {"tools": None, "documents": None, **self._special_tokens}
        names |= {"messages": messages, "add_generation_prompt": add_generation_prompt}
        try:
            return self._template.render(names | dict(variables or {}))
        except TemplateError as error:
            raise ChatTemplateError(f"chat template: {error}") from error
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            # What an expression inside the template makes of messages it did not foresee.
            raise ChatTemplateError(
                f"chat template cannot render these messages: {error} ({type(error).__name__})"
            ) from error


class GenerationTag(Extension):
    """Accepts `{% generation %}`, which marks the model's own words; they render as they are."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the block's body in place of the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    *,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which a model was not trained on.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
