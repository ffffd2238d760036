# SPDX-License-Identifier: MIT
"""What the loop posts: sent by the loop where nobody is in its way, else by the sockets' thread."""

from __future__ import annotations

import select
from collections.abc import Callable

import pytest

from tokenspeed_core.wire.mailbox import Mailbox
from tokenspeed_hookspecs import ControlReply

REPLY = ControlReply("resume", True)


def is_woken(mailbox: Mailbox) -> bool:
    """Whether the sockets' thread would wake now."""
    readable, _, _ = select.select([mailbox.wake.descriptor], [], [], 0)
    return bool(readable)


def taking(mailbox: Mailbox, sent: list[object], *, is_last: bool) -> Callable[[], bool]:
    """A way to send for link 0, which notes what went; `is_last` is what it answers."""

    def send() -> bool:
        while (post := mailbox.next_post(0)) is not None:
            sent.append(post)
        return is_last

    return send


@pytest.mark.parametrize(("is_last", "wakes"), [(True, False), (False, True)])
def test_the_loop_sends_what_it_posts(is_last: bool, wakes: bool) -> None:
    """A post leaves in the call, and the other thread is woken only for what is left."""
    mailbox, sent = Mailbox(8), list[object]()
    mailbox.lend(taking(mailbox, sent, is_last=is_last))
    mailbox.post(REPLY)
    assert (sent, is_woken(mailbox)) == ([REPLY], wakes)


def test_a_post_does_not_wait_for_whoever_sends() -> None:
    """While the sockets' thread sends, a post is left to it and wakes it."""
    mailbox, sent = Mailbox(8), list[object]()
    mailbox.lend(taking(mailbox, sent, is_last=True))
    with mailbox.sending:
        mailbox.post(REPLY)
    assert (sent, is_woken(mailbox)) == ([], True)
    assert mailbox.next_post(0) is REPLY


def test_without_a_link_a_post_wakes_the_sockets_thread() -> None:
    """Before a link stands, and after it was lost, the loop sends nothing itself."""
    mailbox, sent = Mailbox(8), list[object]()
    mailbox.lend(taking(mailbox, sent, is_last=True))
    mailbox.lend(None)
    mailbox.post(REPLY)
    assert (sent, is_woken(mailbox)) == ([], True)
