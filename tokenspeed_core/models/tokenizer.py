# SPDX-License-Identifier: MIT
"""Text to token ids and back, with the tokenizer that comes with a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import tokenizers

from tokenspeed_core.models.backend import Backend
from tokenspeed_core.models.chat_template import ChatTemplate, Message
from tokenspeed_core.models.detokenizer import Detokenizer
from tokenspeed_core.models.errors import ChatTemplateError, ModelError, TextError
from tokenspeed_core.models.fields import read_json_object
from tokenspeed_core.models.token_bytes import read_token_bytes

LONG_TEXT = 4096  # characters; about a millisecond
SPECIAL_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token")


class Tokenizer:
    """A vocabulary with its rules, and the model's chat template if it has one."""

    def __init__(
        self,
        backend: Backend,
        *,
        special_tokens: Mapping[str, str] | None = None,
        template: str | None = None,
        where: str = "tokenizer",
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        self._where = where
        self._special_tokens = dict(special_tokens or {})
        self._template_source = template
        self._bytes = read_token_bytes(backend, where)
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(i for i, token in added.items() if token.special)

    @property
    def vocab_size(self) -> int:
        """One more than the highest token id."""
        return max(self._backend.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The tokenizer's own end of text; the model's config may name more."""
        token_id = self.id_of(self._special_tokens.get("eos_token", ""))
        return () if token_id is None else (token_id,)

    def id_of(self, token: str) -> int | None:
        """Return the id of a token as the vocabulary writes it."""
        return self._backend.token_to_id(token)

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """Return the ids of a text; `add_special` puts the model's start token in front.

        Names of special tokens inside the text become those tokens.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TextError(f"the text has half a surrogate pair at index {error.start}") from error
        if len(text) < LONG_TEXT:
            return self._backend.encode(text, add_special_tokens=add_special).ids
        # A batch, unlike a single text, lets other threads of the process run.
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special)
        return encoding.ids

    def decode(self, token_ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Return the text of a whole sequence; unfinished characters become U+FFFD."""
        detokenizer = self.detokenizer(skip_special=skip_special)
        return detokenizer.push(list(token_ids)) + detokenizer.flush()

    def detokenizer(self, *, skip_special: bool = True, stops: Sequence[str] = ()) -> Detokenizer:
        """Return a fresh incremental decoder for one request."""
        hidden = self.special_ids if skip_special else frozenset()
        return Detokenizer(self._bytes, hidden=hidden, stops=stops)

    def token_bytes(self, token_id: int) -> bytes:
        """Return the bytes a token stands for, which need not be whole characters."""
        return self._bytes.of(token_id)

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> str:
        """Return a conversation as the text the model was trained to continue."""
        return self._template.render(
            messages, add_generation_prompt=add_generation_prompt, variables=variables
        )

    def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        variables: Mapping[str, object] | None = None,
    ) -> list[int]:
        """Return a conversation's ids; the template itself writes the start token."""
        text = self.render_chat(
            messages, add_generation_prompt=add_generation_prompt, variables=variables
        )
        return self.encode(text, add_special=False)

    @cached_property
    def _template(self) -> ChatTemplate:
        if self._template_source is None:
            raise ChatTemplateError(
                f"{self._where}: this model has no chat template; give it a plain prompt, "
                f"or put a chat_template.jinja beside its tokenizer"
            )
        return ChatTemplate(self._template_source, self._special_tokens)


def load_tokenizer(folder: Path) -> Tokenizer:
    """Read a model folder's tokenizer.json and the settings beside it."""
    path = folder / "tokenizer.json"
    if not path.exists():
        raise ModelError(f"{folder}: no tokenizer.json in it{_other_forms(folder)}")
    try:
        backend: Backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for any damage
        raise ModelError(f"{path} cannot be read ({error}); is the file cut short?") from error
    settings_path = folder / "tokenizer_config.json"
    settings = read_json_object(settings_path) if settings_path.exists() else {}
    return Tokenizer(
        backend,
        special_tokens=_special_tokens(settings),
        template=_find_template(folder, settings),
        where=str(folder),
    )


def _other_forms(folder: Path) -> str:
    for name in ("tokenizer.model", "vocab.json"):
        if (folder / name).exists():
            return (
                f", only the older {name}; AutoTokenizer.from_pretrained(...).save_pretrained(...) "
                f"of transformers writes the newer form"
            )
    return ""


def _special_tokens(settings: Mapping[str, object]) -> dict[str, str]:
    found = {}
    for role in SPECIAL_ROLES:
        value = settings.get(role)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            found[role] = content
    return found


def _find_template(folder: Path, settings: Mapping[str, object]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.exists():
        return path.read_text(encoding="utf-8")
    value = settings.get("chat_template")
    if isinstance(value, list):
        named = {entry["name"]: entry["template"] for entry in value if isinstance(entry, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else None
