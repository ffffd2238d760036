# SPDX-License-Identifier: MIT
"""Who may use what."""

from __future__ import annotations

import hmac
from enum import Enum

from attrs import frozen
from starlette.requests import Request

from tokenspeed_openai.errors import ApiError
from tokenspeed_openai.options import Options, is_loopback


class Access(Enum):
    """What an endpoint asks of its caller."""

    OPEN = "nothing"
    CLIENT = "the api key, if there is one"
    LOCAL = "to come from this machine, or a key"
    ADMIN = "the admin key, and that there is one"


@frozen
class Keys:
    """The keys of a deployment."""

    options: Options

    def is_admin(self, request: Request) -> bool:
        """Whether the caller sent the admin key."""
        return _has(request, self.options.admin_key)

    def check(self, request: Request, access: Access) -> None:
        """ApiError for a caller without the right key."""
        api_key, admin_key = self.options.api_key, self.options.admin_key
        if access is Access.CLIENT and api_key is not None:
            _need(request, api_key)
        elif access is Access.LOCAL and not _is_local(request):
            _need(request, api_key, admin_key)
        elif access is Access.ADMIN:
            if admin_key is None:
                raise ApiError(
                    403,
                    "Control operations are switched off: this server has no admin_key; start it "
                    "with --admin-key KEY or with TOKENSPEED_KEY set",
                    code="no_admin_key",
                )
            _need(request, admin_key)


def _has(request: Request, key: str | None) -> bool:
    """Compare in constant time, so that no key can be found byte by byte."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or key is None:
        return False
    return hmac.compare_digest(given.strip().encode(), key.encode())


def _need(request: Request, *keys: str | None) -> None:
    if not any(_has(request, key) for key in keys):
        raise ApiError(
            401,
            "Missing or wrong key; send it as `Authorization: Bearer KEY`",
            code="invalid_api_key",
        )


def _is_local(request: Request) -> bool:
    try:
        return request.client is not None and is_loopback(request.client.host)
    except ValueError:
        return False
