# SPDX-License-Identifier: MIT
"""What an S3 store takes for its own in a bucket, here one in memory, and how it removes it."""

from __future__ import annotations

import importlib.util
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from tokenspeed_l3.frames import head_of
from tokenspeed_l3.store import StoreError
from tokenspeed_l3.store_contract import blank, names, page_of, put

if TYPE_CHECKING:
    from obstore.store import MemoryStore

    from tokenspeed_l3.stores.s3 import S3Store

SIZE = 10
NAMESPACE = "model-v1-" + "ab" * 32

pytestmark = pytest.mark.skipif(
    not importlib.util.find_spec("obstore"), reason="without the extra `s3`"
)


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """A bucket that every store of a test has."""
    from obstore.store import MemoryStore

    from tokenspeed_l3.stores.s3 import S3Options

    found = MemoryStore()
    monkeypatch.setattr(S3Options, "bucket", lambda options: found)
    return found


def open_store() -> S3Store:
    """A store of a bucket's root."""
    from tokenspeed_l3.stores.s3 import S3Store

    return S3Store({"location": "//bucket"}, buffers=())


def left_in(bucket: MemoryStore) -> set[str]:
    """The names in a bucket."""
    import obstore

    return {each["path"] for page in obstore.list(bucket) for each in page}


def test_objects_of_others_are_not_listed(bucket: MemoryStore) -> None:
    """A bucket may hold anything: what is not ours must not be pruned, whatever it is called."""
    import obstore

    theirs = ["logs/2026", "logs/2026/11/day.txt", "readme", f"{NAMESPACE}/notes", "empty/file"]
    for path in theirs:
        obstore.put(bucket, path, b"" if path.startswith("empty") else b"theirs" * 100)
    store, keys = open_store(), [*names(NAMESPACE, 2), "Odd Key/with spaces"]
    put(store, keys, size=SIZE)
    assert {each.key: each.size for each in store.objects()} == dict.fromkeys(keys, SIZE)
    for each in list(store.objects()):
        assert store.remove(each.key)
    assert left_in(bucket) == set(theirs)
    store.close()


def test_an_object_whose_head_is_damaged_is_listed_and_found(bucket: MemoryStore) -> None:
    """Its name says which it is."""
    import obstore

    store, keys = open_store(), names(NAMESPACE, 3)
    put(store, keys, size=SIZE)
    obstore.put(bucket, keys[0], b"")
    obstore.put(bucket, keys[1], b"X" * 300)
    assert {each.key for each in store.objects()} == set(keys)
    assert [store.check(key) is None for key in keys] == [False, False, True]
    store.close()


def test_objects_may_vanish_while_one_looks(
    bucket: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rest is listed, and of large ones only the beginning is read."""
    import obstore

    store, key = open_store(), "Odd Key/x"
    put(store, [key, *names(NAMESPACE, 1)], size=SIZE)
    large = head_of("large", page := page_of("large", 1 << 20)) + page
    obstore.put(bucket, "large", large)
    get, asked = obstore.get, []

    def get_late(client: Any, path: str) -> Any:
        asked.append(path)
        obstore.delete(client, path)
        return get(client, path)

    monkeypatch.setattr(obstore, "get", get_late)
    assert [each.key for each in store.objects()] == names(NAMESPACE, 1)
    assert [each[0] for each in asked] == ["~"]
    store.close()


def test_a_damaged_object_that_may_not_be_deleted_is_still_only_damaged(
    bucket: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who may only read: the object fails each time, and its neighbours are got."""
    import obstore

    store, keys = open_store(), names(NAMESPACE, 2)
    put(store, keys, size=SIZE)
    obstore.put(bucket, keys[0], b"X" * 300)

    def denied(*given: Any) -> None:
        raise obstore.exceptions.PermissionDeniedError("read only")

    monkeypatch.setattr(obstore, "delete", denied)
    for _ in range(2):
        result = store.batch_get_into(keys, [blank(SIZE), blank(SIZE)])
        assert (list(result.success), list(result.failed)) == ([False, True], [True, False])
    assert store.counts() == {"failed": 2}
    store.close()


def test_a_namespace_of_many_pages_is_removed(bucket: MemoryStore) -> None:
    """However many a listing tells at a time."""
    store, keys = open_store(), names(NAMESPACE, 2300)
    put(store, keys + names("other", 1), size=SIZE)
    assert store.remove_by_prefix(f"{NAMESPACE}/")
    assert left_in(bucket) == set(names("other", 1))
    store.close()


def test_the_end_does_not_wait_for_a_namespace_to_be_removed(
    bucket: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large one takes minutes: what is left stays, and the removal says that it failed."""
    import obstore

    store, delete = open_store(), obstore.delete
    put(store, names(NAMESPACE, 2300), size=SIZE)
    closing = threading.Thread(target=store.close, daemon=True)

    def delete_and_close(*given: Any) -> None:
        delete(*given)
        closing.start()
        while not store._calls._is_closed:
            time.sleep(0.001)

    monkeypatch.setattr(obstore, "delete", delete_and_close)
    with pytest.raises(StoreError, match="closed"):
        store.remove_by_prefix(f"{NAMESPACE}/")
    closing.join()
    assert len(left_in(bucket)) == 1300
