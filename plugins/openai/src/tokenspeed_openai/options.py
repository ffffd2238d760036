# SPDX-License-Identifier: MIT
"""What the server is told, and what can be wrong with it before anything starts."""

from __future__ import annotations

import ipaddress
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

from attrs import field, frozen

from tokenspeed_openai.reasoning import FAMILIES

MEBIBYTE = 1 << 20
API_KEY_VARIABLE = "TOKENSPEED_API_KEY"
ADMIN_KEY_VARIABLE = "TOKENSPEED_KEY"  # which the operators' commands send


@frozen(kw_only=True)
class Options:
    """The `[frontend]` table. Keys are never printed; the environment keeps them out of the list
    of processes as well."""

    host: str = field(default="127.0.0.1", metadata={"help": "the address to listen on"})
    port: int = field(default=8000, metadata={"help": "the port; 0 takes any free one"})
    api_key: str | None = field(
        factory=lambda: os.environ.get(API_KEY_VARIABLE),
        repr=False,
        metadata={"help": f"the key clients must send (from {API_KEY_VARIABLE})"},
    )
    admin_key: str | None = field(
        factory=lambda: os.environ.get(ADMIN_KEY_VARIABLE),
        repr=False,
        metadata={"help": f"the key for /engine/*, off without (from {ADMIN_KEY_VARIABLE})"},
    )
    ssl_certfile: Path | None = field(
        default=None, metadata={"help": "a certificate in PEM form: serve https"}
    )
    ssl_keyfile: Path | None = field(default=None, metadata={"help": "the certificate's key"})
    served_model_name: str | None = field(
        default=None, metadata={"help": "the model's name for clients, instead of its own"}
    )
    reasoning_parser: str | None = field(
        default=None,
        metadata={"help": f"how the model thinks before it answers: {', '.join(FAMILIES)}"},
    )
    public_without_key: bool = field(
        default=False, metadata={"help": "listen beyond this machine though there is no key"}
    )
    max_body_bytes: int = field(
        default=16 * MEBIBYTE, metadata={"help": "the largest request body"}
    )


def problems(options: Options) -> list[str]:
    """Every problem, as a sentence each."""
    return [
        *_key_problems(options),
        *_number_problems(options),
        *_parser_problems(options),
        *_certificate_problems(options),
        *_port_problems(options),
    ]


def listening_socket(options: Options) -> socket.socket:
    """Bind the port; OSError says why it cannot be had."""
    family, address = _addresses(options)[0]
    # asyncio sends small pieces at once only where it is told that this is TCP.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError:
        listening.close()
        raise
    return listening


def is_loopback(host: str) -> bool:
    """Whether an address is one of this machine's own."""
    address = ipaddress.ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _addresses(options: Options) -> list[tuple[int, tuple[object, ...]]]:
    found = socket.getaddrinfo(
        options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    return [(family, address) for family, _, _, _, address in found]


def _key_problems(options: Options) -> Iterator[str]:
    for name in ("api_key", "admin_key"):
        key = getattr(options, name)
        if key is not None and not (key.isascii() and key.isprintable() and key.strip()):
            yield f"{name} must be printable ASCII and not blank"
    try:
        hosts = {str(address[0]) for _, address in _addresses(options)}
    except (OSError, UnicodeError) as error:
        yield f"host {options.host!r} cannot be resolved: {error}"
        return
    is_open = options.api_key is None and not options.public_without_key
    if is_open and not all(map(is_loopback, hosts)):
        yield (
            f"host {options.host!r} is reachable from other machines and there is no api_key; set "
            "one, or say public_without_key if everyone may use this server"
        )


def _number_problems(options: Options) -> Iterator[str]:
    if not 0 <= options.port < 1 << 16:
        yield f"port must be in [0, 65535], got {options.port}"
    if options.max_body_bytes < 1:
        yield f"max_body_bytes must be at least 1, got {options.max_body_bytes}"


def _parser_problems(options: Options) -> Iterator[str]:
    parser = options.reasoning_parser
    if parser is not None and parser not in FAMILIES:
        yield f"reasoning_parser must be one of {', '.join(FAMILIES)}, got {parser!r}"


def _certificate_problems(options: Options) -> Iterator[str]:
    certificate, key = options.ssl_certfile, options.ssl_keyfile
    if certificate is None:
        if key is not None:
            yield "ssl_keyfile is set and ssl_certfile is not; https needs both"
        return
    unreadable = [*_unreadable("ssl_certfile", certificate), *_unreadable("ssl_keyfile", key)]
    yield from unreadable
    if unreadable:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
    except (OSError, ValueError) as error:
        yield (
            f"ssl_certfile {certificate} with {key or 'the key inside it'} is no usable pair of "
            f"certificate and unencrypted key: {error}"
        )


def _unreadable(name: str, path: Path | None) -> Iterator[str]:
    if path is None:
        return
    try:
        path.open("rb").close()
    except OSError as error:
        yield f"{name} {path} cannot be read: {error.strerror}"


def _port_problems(options: Options) -> Iterator[str]:
    try:
        listening_socket(options).close()
    except (UnicodeError, OverflowError, socket.gaierror):
        return  # the host's or the number's own problem
    except OSError as error:
        yield f"port {options.port} on {options.host} cannot be had: {error.strerror}"
