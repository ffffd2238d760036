# SPDX-License-Identifier: MIT
"""A model's name leads to a folder, or to an error that names the choices."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import tokenizers
from tokenizers import decoders, models

from tokenspeed_core.models.errors import ModelError
from tokenspeed_core.models.hub import hub_folder
from tokenspeed_core.models.progress import Silent
from tokenspeed_core.models.resolve import resolve_model

COMMIT = "0" * 40


def test_local_folder_is_taken_as_it_is(llama_folder: Path) -> None:
    """A folder needs no cache and no conversion."""
    found = resolve_model(str(llama_folder))
    assert (found.path, found.config.num_layers) == (llama_folder, 2)
    assert len(found.open_weights().shapes) == 21


NOWHERE = [
    ("smolm2-135m", "did you mean smollm2-135m. A model is one of"),
    ("gpt-5", "- smollm2-135m"),
    ("", "a Hugging Face id such as org/name"),
    ("x" * 5000, "unknown model 'xxx"),
    ("~nobody/x\0", "no such file or folder"),
    ("a/b/c", "unknown model 'a/b/c'"),
    ("./nowhere", "nowhere: no such file or folder"),
    ("x.gguf", "x.gguf: no such file or folder"),
]


@pytest.mark.parametrize(("name", "message"), NOWHERE)
def test_unknown_names_list_the_choices(tmp_path: Path, name: str, message: str) -> None:
    """A name that leads nowhere is refused with the choices, and the nearest one."""
    with pytest.raises(ModelError) as caught:
        resolve_model(name, root=tmp_path)
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_other_files_are_refused(llama_folder: Path) -> None:
    """A file of a model folder is no model."""
    with pytest.raises(ModelError, match="give the folder it is in"):
        resolve_model(str(llama_folder / "model.safetensors"))


def test_tokenizer_must_fit_the_model(llama_folder: Path) -> None:
    """A tokenizer with more ids than the model has rows is refused."""
    vocabulary = {f"t{i}": i for i in range(263)}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    backend.decoder = decoders.ByteLevel()
    backend.save(str(llama_folder / "tokenizer.json"))
    with pytest.raises(ModelError, match="263 ids, the model only 262"):
        resolve_model(str(llama_folder)).load_tokenizer()


class Hub(BaseHTTPRequestHandler):
    """Answers as the hub does for one repository, whose files are its server's `folder`."""

    @property
    def hub(self) -> HubServer:
        """The server, by its own class."""
        assert isinstance(self.server, HubServer)
        return self.server

    def do_HEAD(self) -> None:
        """Tell a file's size and identity."""
        self.answer(self.path.rsplit("/", 1)[-1], with_body=False)

    def do_GET(self) -> None:
        """Tell the list of files, or send one."""
        name = self.path.rsplit("/", 1)[-1]
        if not self.path.startswith("/api/"):
            self.hub.asked.append(name)
            self.answer(name, with_body=True)
        elif "/org/model/" in self.path:
            files = [{"rfilename": path.name} for path in sorted(self.hub.folder.iterdir())]
            listing = {"id": "org/model", "sha": COMMIT, "siblings": files}
            self.send(200, json.dumps(listing).encode())
        else:
            self.send(404, b"{}", {"X-Error-Code": "RepoNotFound"})

    def answer(self, name: str, *, with_body: bool) -> None:
        """Send a file's headers, and the file."""
        content = (self.hub.folder / name).read_bytes()
        headers = {"Content-Length": str(len(content)), "ETag": f'"{name}"'}
        self.send(200, content if with_body else b"", headers)

    def send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        """Send one answer."""
        self.send_response(status)
        names = {"X-Repo-Commit": COMMIT, "Content-Length": str(len(body))}
        for key, value in (names | (headers or {})).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep quiet."""


class HubServer(ThreadingHTTPServer):
    """A hub on this machine with one repository, `org/model`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Hub)
        self.folder = folder
        self.asked: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def hub(llama_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """The little model on a hub, beside files that must not be fetched."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("pytorch_model.bin", "modeling_custom.py", "README.md"):
        (llama_folder / name).write_text(name)
    with HubServer(llama_folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_hub_files_are_fetched(hub: HubServer, tmp_path: Path) -> None:
    """A hub id becomes a loadable folder; pickles and code are never asked for."""
    folder = hub_folder("org/model", Silent(), endpoint=hub.url, cache=tmp_path / "hub")
    resolve_model(str(folder)).open_weights()
    assert sorted(hub.asked) == ["config.json", "model.safetensors"]


def test_fetched_files_serve_without_a_hub(hub: HubServer, tmp_path: Path) -> None:
    """What was fetched once is found again when the hub cannot be reached."""
    first = hub_folder("org/model", Silent(), endpoint=hub.url, cache=tmp_path / "hub")
    closed = "http://127.0.0.1:9"
    assert hub_folder("org/model", Silent(), endpoint=closed, cache=tmp_path / "hub") == first


def test_unknown_repository_is_one_error(hub: HubServer, tmp_path: Path) -> None:
    """A repository the hub does not know is named."""
    with pytest.raises(ModelError, match="cannot fetch org/other"):
        hub_folder("org/other", Silent(), endpoint=hub.url, cache=tmp_path / "hub")


def test_no_network_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network and without an earlier snapshot the error says both."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(ModelError, match="the hub cannot be reached"):
        hub_folder("org/model", Silent(), endpoint="http://127.0.0.1:9", cache=tmp_path)


def test_nothing_is_printed(
    hub: HubServer, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The hub library's own bars stay off."""
    hub_folder("org/model", Silent(), endpoint=hub.url, cache=tmp_path / "hub")
    assert capfd.readouterr() == ("", "")
