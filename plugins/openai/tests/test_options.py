# SPDX-License-Identifier: MIT
"""What is wrong with options is said before anything starts."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trustme

from tokenspeed_openai.options import (
    ADMIN_KEY_VARIABLE,
    API_KEY_VARIABLE,
    Options,
    listening_socket,
)
from tokenspeed_openai.server import OpenAIServer


def _problems(**options: Any) -> str:
    return "\n".join(OpenAIServer(Options(**{"port": 0, **options})).check())


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port of this machine that somebody listens on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate for this machine, and its key."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    return certificate, key


def test_the_usual_options_are_right() -> None:
    """Loopback without keys is fine."""
    assert _problems() == _problems(host="localhost") == _problems(host="::1") == ""


def test_a_port_that_is_taken(taken_port: int) -> None:
    """A taken port is told before the engine loads."""
    assert f"port {taken_port} on 127.0.0.1 cannot be had" in _problems(port=taken_port)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_public_address_needs_a_key(host: str) -> None:
    """Listening beyond this machine wants a key, or the word that none is wanted."""
    assert "reachable from other machines" in _problems(host=host)
    assert _problems(host=host, api_key="k") == ""
    assert _problems(host=host, public_without_key=True) == ""


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"host": "no such host"}, "cannot be resolved"),
        ({"host": "192.0.2.1", "api_key": "k"}, "cannot be had"),
        ({"port": 70000}, "port must be in"),
        ({"max_body_bytes": 0}, "max_body_bytes must be"),
        ({"api_key": " "}, "api_key must be printable"),
        ({"admin_key": "a\nb"}, "admin_key must be printable"),
        ({"ssl_keyfile": Path("key.pem")}, "https needs both"),
        ({"ssl_certfile": Path("nowhere.pem")}, "nowhere.pem cannot be read"),
        ({"ssl_certfile": Path(__file__)}, "no usable pair"),
    ],
)
def test_wrong_options(options: dict[str, Any], words: str) -> None:
    """Each option that cannot be is named with the reason."""
    assert words in _problems(**options)


def test_all_problems_are_told_at_once() -> None:
    """Several problems come together."""
    problems = _problems(host="0.0.0.0", max_body_bytes=0, ssl_certfile=Path("nowhere.pem"))
    assert len(problems.splitlines()) == 3


def test_small_pieces_are_not_held_back() -> None:
    """The socket names its protocol, without which asyncio leaves Nagle's algorithm on."""
    with listening_socket(Options(port=0)) as listening:
        assert listening.proto == socket.IPPROTO_TCP


def test_keys_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys need not stand on the command line, where every user of the machine reads them."""
    monkeypatch.setenv(API_KEY_VARIABLE, "a")
    monkeypatch.setenv(ADMIN_KEY_VARIABLE, "b")
    options = Options()
    assert (options.api_key, options.admin_key) == ("a", "b")


def test_https(start: Any, pair: tuple[Path, Path]) -> None:
    """With a certificate the server speaks https."""
    certificate, key = pair
    assert _problems(ssl_certfile=certificate, ssl_keyfile=key) == ""
    site = start(ssl_certfile=certificate, ssl_keyfile=key)
    assert httpx2.get(f"{site.url}/ping", verify=False).status_code == 200
    assert site.url.startswith("https://")


def test_an_example_runs_as_it_is(site: Any) -> None:
    """The line that is shown to whoever started a server gets an answer."""
    line = shlex.split(OpenAIServer(Options()).example(site.url, "scripted"))
    command, url, _, header, _, body = line
    name, value = header.split(": ")
    answer = httpx2.post(url, content=body, headers={name: value})
    assert (command, answer.status_code) == ("curl", 200)
