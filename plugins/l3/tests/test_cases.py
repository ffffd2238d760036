# SPDX-License-Identifier: MIT
"""Failures that others had in the field with a storage tier, and what must be seen instead."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tokenspeed_core.testing import telling_tokens
from tokenspeed_l3.store import StoreError
from tokenspeed_l3.store_contract import blank, names, page_of
from tokenspeed_l3.stores.file import FileStore
from tokenspeed_l3.testing import ScriptedStore

Deploy = Callable[..., Any]
PAGE = 16
PROMPT = range(1, 11 * PAGE + 2)
TOKENS = telling_tokens(4)


def stored_prefix(deploy: Deploy) -> tuple[dict[str, bytes], list[str]]:
    """What an engine leaves of the prompt, and the keys of its pages in their order."""
    store = ScriptedStore()
    deployment = deploy(store)
    deployment.ask("first", PROMPT, budget=4)
    deployment.settle()
    seeker = ScriptedStore()
    deploy(seeker, max_keys_per_operation=64).ask("seeker", PROMPT, budget=1)
    return store.objects, [key for key in seeker.keys if key in store.objects][:11]


def planned_prefix(deployment: Any, name: str) -> int:
    """Cached tokens of the request's first chunk, as its forward was planned."""
    for batch in deployment.engine.plane.batches:
        if name in batch.request_ids[: batch.num_extends]:
            prefix: int = batch.extend_prefix_lens[batch.request_ids.index(name)]
            return prefix
    raise AssertionError(f"{name} was never planned")


@pytest.mark.parametrize(
    ("options", "trouble", "cached"),
    [
        ({"max_host_pages": 3}, {}, 3 * PAGE),
        ({"max_keys_per_operation": 2}, {}, 2 * PAGE),
        ({"max_prefetch_tokens": 5 * PAGE}, {}, 5 * PAGE),
        ({"min_prefetch_tokens": 12 * PAGE}, {}, 0),
        ({"wait_timeout_s": 0.001}, {"shut": {"get"}}, 0),
        ({}, {"down": {"get"}}, 0),
        ({}, {"landing": 6}, 6 * PAGE),
        ({"max_keys_per_operation": 64}, {}, 11 * PAGE),
    ],
)
def test_the_length_told_is_what_was_fetched(
    deploy: Deploy, options: dict[str, Any], trouble: dict[str, Any], cached: int
) -> None:
    """L3-03: whatever keeps pages from being fetched, usage, plan and tier say the same length."""
    objects, _ = stored_prefix(deploy)
    deployment = deploy(ScriptedStore(objects, **trouble), **options)
    assert deployment.ask("second", PROMPT, budget=4).tokens == TOKENS
    told = deployment.engine.received["second"].chunks[-1]
    by_tier = told.details.cached_by_tier if cached else {"storage": 0}
    assert (planned_prefix(deployment, "second"), told.cached_tokens, by_tier["storage"]) == (
        cached,
        cached,
        cached,
    )


@pytest.mark.parametrize("on_host", range(6))
def test_pages_of_the_store_land_behind_those_of_the_host(deploy: Deploy, on_host: int) -> None:
    """L3-09: with the first h pages at hand and the next n in the store, h + n are used, each at
    its place; the scripted plane checks every page that is read."""
    objects, keys = stored_prefix(deploy)
    for in_store in range(6):
        some = {key: objects[key] for key in keys[on_host : on_host + in_store]}
        store = ScriptedStore(some)
        deployment = deploy(store)
        if on_host:
            deployment.ask("head", PROMPT[: on_host * PAGE], budget=1)
            deployment.settle()
        assert deployment.ask("whole", PROMPT, budget=4).tokens == TOKENS
        expected = (on_host + in_store) * PAGE
        assert planned_prefix(deployment, "whole") == expected, in_store
        deployment.settle()
        assert deployment.held == [0]


def test_a_put_that_failed_anywhere_is_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """L3-04: of puts that fail at random bytes nothing is ever read; what is read is right."""
    chance, write, broken = random.Random(4), os.writev, 0

    def failing(fd: int, views: Sequence[memoryview]) -> int:
        nonlocal broken
        if chance.random() > 0.01:
            return write(fd, views)
        broken += 1
        whole = b"".join(views)
        os.write(fd, whole[: chance.randrange(len(whole))])
        raise OSError(chance.choice([errno.EIO, errno.ENOSPC, errno.EDQUOT]), "scripted")

    monkeypatch.setattr(os, "writev", failing)
    store = FileStore({"location": str(tmp_path), "min_free": 0, "sync": False}, buffers=())
    keys, stored = names("flaky", 10_000), set()
    for at in range(0, len(keys), 8):
        batch = keys[at : at + 8]
        try:
            result = store.batch_put_from(batch, [page_of(key, 300) for key in batch])
        except StoreError:
            continue
        stored |= {key for key, good in zip(batch, result.success, strict=True) if good}
    assert broken > 50
    page = blank(300)
    for key in keys:
        found = store.batch_get_into([key], [page])
        assert not any(found.failed), "a file was there that is no object"
        assert found.success[0] or key not in stored
        assert not found.success[0] or page == page_of(key, 300)
    store.close()


def test_what_exists_is_got_or_missed(tmp_path: Path) -> None:
    """L3-15: two put, read and remove the same thousand keys at once; whatever `exists` said, a
    get finds the whole object or none, and never a bad one."""
    keys, size = names("both", 1000), 200
    options = {"location": str(tmp_path), "min_free": 0, "sync": False}
    stores = [FileStore(options, buffers=()) for _ in range(2)]

    def work(number: int) -> tuple[int, int]:
        store, chance, wrong, hits = stores[number], random.Random(number), 0, 0
        for turn in range(20):
            batch = chance.sample(keys, 50)
            store.batch_put_from(batch, [page_of(key, size) for key in batch])
            if turn % 7 == 6:
                store.remove_by_prefix("both/")
            batch = chance.sample(keys, 50)
            store.batch_exists(batch)
            pages = [blank(size) for _ in batch]
            result = store.batch_get_into(batch, pages)
            wrong += sum(result.failed)
            for key, page, good in zip(batch, pages, result.success, strict=True):
                wrong += good and page != page_of(key, size)
                hits += good
        return wrong, hits

    with ThreadPoolExecutor() as pool:
        counts = list(pool.map(work, range(2)))
    assert [wrong for wrong, _ in counts] == [0, 0]
    assert all(hits for _, hits in counts)
    for store in stores:
        store.close()
