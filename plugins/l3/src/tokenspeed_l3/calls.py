# SPDX-License-Identifier: MIT
"""The calls that run in a store, so that its end can wait for them."""

from __future__ import annotations

import threading

from attrs import define, field

from tokenspeed_l3.store import StoreError


@define(eq=False)
class RunningCalls:
    """A context that is open until the store is closed: `with calls:` around each call."""

    _count: int = field(init=False, default=0)
    _is_closed: bool = field(init=False, default=False)
    _changed: threading.Condition = field(init=False, factory=threading.Condition)

    def __enter__(self) -> None:
        with self._changed:
            if self._is_closed:
                raise StoreError("the store is closed")
            self._count += 1

    def __exit__(self, *raised: object) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def close(self) -> bool:
        """Refuse further calls and wait for those that run; whether this is the first close."""
        with self._changed:
            is_first, self._is_closed = not self._is_closed, True
            self._changed.wait_for(lambda: self._count == 0)
        return is_first
