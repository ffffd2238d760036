# SPDX-License-Identifier: MIT
"""Texts and conversations become the ids the model was trained on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
import transformers
from tokenizers import decoders, models

from tokenspeed_core.models.errors import ChatTemplateError, ModelError, TextError
from tokenspeed_core.models.resolve import ModelFolder
from tokenspeed_core.models.tokenizer import Tokenizer, load_tokenizer

GOLDEN = Path(__file__).parent / "data" / "smollm2_token_ids.json"
MESSAGES = [
    {"role": "system", "content": "Be  brief.\n"},
    {"role": "user", "content": "What is 12 + 30? <|im_end|>"},
    {"role": "assistant", "content": "42 é😀"},
    {"role": "user", "content": ""},
]


@pytest.fixture(scope="module")
def tokenizer(default_model: ModelFolder) -> Tokenizer:
    """The default model's tokenizer."""
    return default_model.load_tokenizer()


@pytest.fixture(scope="module")
def reference(default_model: ModelFolder) -> transformers.PreTrainedTokenizerBase:
    """The same files as transformers reads them."""
    return transformers.AutoTokenizer.from_pretrained(default_model.path)


@pytest.fixture
def plain() -> Tokenizer:
    """A tokenizer of two tokens, without a chat template."""
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, where="plain")


def with_template(source: str) -> Tokenizer:
    """Make a tokenizer of two tokens with a chat template."""
    backend = tokenizers.Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, special_tokens={"bos_token": "a"}, template=source)


def test_ids_are_llama_cpps(tokenizer: Tokenizer) -> None:
    """631 texts of all kinds get the ids llama.cpp gives them."""
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    differing = [text for text, ids in golden if tokenizer.encode(text) != ids]
    assert len(golden) == 631
    assert differing == []


@pytest.mark.parametrize("count", range(1, len(MESSAGES) + 1))
@pytest.mark.parametrize("prompt", [True, False])
def test_chat_ids_are_transformers(
    tokenizer: Tokenizer,
    reference: transformers.PreTrainedTokenizerBase,
    count: int,
    prompt: bool,
) -> None:
    """A conversation gets the ids transformers gives it, system message or not."""
    messages = MESSAGES[-count:]
    expected = reference.apply_chat_template(messages, add_generation_prompt=prompt)
    assert tokenizer.encode_chat(messages, add_generation_prompt=prompt) == expected


TEMPLATES = [
    "{% for m in messages %}\n  {{ m.content | tojson }}\n{% endfor %}\n",
    "{{ bos_token }}{% generation %}{{ messages[0]['content'] }}{% endgeneration %}",
    "{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}x{% endfor %}",
    "{%- if tools is none %}no tools{% else %}{{ tools | tojson(indent=2) }}{% endif %}",
    "{{ messages[-1].content[::-1].strip() }}{{ strftime_now('%%') }}",
]


@pytest.mark.parametrize("source", TEMPLATES)
@pytest.mark.parametrize("tools", [None, [{"type": "function", "function": {"name": "<f>"}}]])
def test_templates_render_as_transformers(
    reference: transformers.PreTrainedTokenizerBase, source: str, tools: list[dict[str, object]]
) -> None:
    """Whitespace rules, filters, tags and names of templates are those of transformers."""
    messages = [{"role": "user", "content": "<é> "}, {"role": "user", "content": "b"}]
    reference.bos_token = "a"
    expected = reference.apply_chat_template(
        messages, tools=tools, chat_template=source, tokenize=False, add_generation_prompt=True
    )
    ours = with_template(source).render_chat(messages, variables={"tools": tools})
    assert ours == expected


BAD_TEMPLATES = [
    ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
    ("{% if %}", "does not compile"),
    ("{{ messages[0].content + 1 }}", "cannot render these messages"),
    ("{{ messages.append(1) }}", "chat template"),
    ("{{ ''.__class__.__mro__ }}", "unsafe"),
]


@pytest.mark.parametrize(("source", "message"), BAD_TEMPLATES)
def test_template_trouble_is_one_error(source: str, message: str) -> None:
    """What a template refuses, cannot compute or must not touch is a ChatTemplateError."""
    with pytest.raises(ChatTemplateError, match=message):
        with_template(source).render_chat([{"role": "user", "content": "x"}])


def test_missing_template_is_named(plain: Tokenizer) -> None:
    """A model without a chat template says so, and still encodes text."""
    with pytest.raises(ChatTemplateError, match="plain: this model has no chat template"):
        plain.encode_chat([{"role": "user", "content": "a"}])
    assert plain.encode("ab") == [0, 1]


def test_a_long_text_is_encoded_like_a_short_one(tokenizer: Tokenizer) -> None:
    """A text that is encoded beside other threads gets the ids of its lines, one by one."""
    lines = [f"Line {number}: 東京\n" for number in range(1000)]
    one_by_one = [token for line in lines for token in tokenizer.encode(line, add_special=False)]
    assert tokenizer.encode("".join(lines), add_special=False) == one_by_one


def test_half_a_surrogate_pair_is_refused(plain: Tokenizer) -> None:
    """A text that is no Unicode text is a TextError that says where."""
    with pytest.raises(TextError, match="index 2"):
        plain.encode("ab\ud800")


@pytest.mark.parametrize("token_id", [-1, 2, 10**9])
def test_ids_without_a_token_have_no_text(plain: Tokenizer, token_id: int) -> None:
    """Ids between the vocabulary and the padded embedding add nothing."""
    assert plain.token_bytes(token_id) == b""
    assert plain.decode([0, token_id, 1]) == "ab"


def test_byte_fallback_vocabularies() -> None:
    """Space marks, byte tokens and the stripped first space come out as transformers has them."""
    vocabulary = ["▁a", "▁", "b", "<0xE4>", "<0xBD>", "<0xA0>", "é"]
    backend = tokenizers.Tokenizer(models.BPE({t: i for i, t in enumerate(vocabulary)}, []))
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*parts, decoders.Strip(" ", 1, 0)])
    tokenizer = Tokenizer(backend)
    ids = [0, 2, 1, 3, 4, 5, 6, 0]
    assert tokenizer.decode(ids) == backend.decode(ids) == "ab 你é a"
    assert tokenizer.token_bytes(3) == b"\xe4"


def test_other_decoders_are_refused() -> None:
    """A vocabulary whose bytes we would guess wrong is refused by its decoder's name."""
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(ModelError, match="decoder WordPiece is not supported"):
        Tokenizer(backend)


def test_missing_tokenizer_is_named(tmp_path: Path) -> None:
    """A folder without tokenizer.json is named, with what is there instead."""
    (tmp_path / "tokenizer.model").touch()
    with pytest.raises(ModelError, match=r"no tokenizer\.json in it, only the older tokenizer\.mo"):
        load_tokenizer(tmp_path)


def test_broken_tokenizer_is_named(tmp_path: Path) -> None:
    """A tokenizer.json that is cut short is named."""
    (tmp_path / "tokenizer.json").write_text('{"version": "1.0"')
    with pytest.raises(ModelError, match=r"tokenizer\.json cannot be read"):
        load_tokenizer(tmp_path)


SETTINGS = [
    {"chat_template": "from settings"},
    {"chat_template": [{"name": "default", "template": "from settings"}]},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_template_is_found(default_model: ModelFolder, tmp_path: Path, settings: object) -> None:
    """A chat_template.jinja goes before the template of tokenizer_config.json."""
    (tmp_path / "tokenizer.json").symlink_to(default_model.path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert load_tokenizer(tmp_path).render_chat([]) == "from settings"
    (tmp_path / "chat_template.jinja").write_text("from file")
    assert load_tokenizer(tmp_path).render_chat([]) == "from file"


def test_ends_and_sizes(tokenizer: Tokenizer) -> None:
    """The tokenizer knows its own end of text, its size and its special tokens."""
    assert tokenizer.eos_token_ids == (tokenizer.id_of("<|im_end|>"),) == (2,)
    assert tokenizer.vocab_size == 49152
    assert tokenizer.special_ids == frozenset(range(17))
