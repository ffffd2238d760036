# SPDX-License-Identifier: MIT
"""`s3://bucket/prefix`: an object an object, in anything that speaks S3.

A put there is whole or not at all, and what is listed is up to date. There is no limit and no time
of use: a lifecycle rule of the bucket takes away what is old. A namespace is removed object by
object, which takes its time.

The client is `obstore`: 6 MB in one wheel, works without the interpreter's lock. `boto3` is 17 MB
of Python with five dependencies, and would hold up the engine's loop while it parses.
"""

from __future__ import annotations

import datetime
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

import obstore
from attrs import field, frozen
from attrs.validators import ge, gt, matches_re
from obstore.exceptions import BaseError
from obstore.store import S3Store as Bucket

from tokenspeed_l3.calls import RunningCalls
from tokenspeed_l3.frames import LONGEST_HEAD, head_of, head_size, key_of, problem_of
from tokenspeed_l3.keys import OBJECT
from tokenspeed_l3.store import IoResult, StoredObject, StoreError
from tokenspeed_l3.store_options import read_options
from tokenspeed_l3.stores.directory import safe_name

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config

Item = TypeVar("Item")
Answer = TypeVar("Answer")

LIST = 1000
NO_BUCKET = "NoSuchBucket"


@frozen(kw_only=True)
class S3Options:
    """The settings of an S3 store. What is left empty comes from the environment (AWS_REGION,
    AWS_ACCESS_KEY_ID and so on) or the machine's role."""

    location: str = field(validator=matches_re(r"//[^/]+(/.*)?"))
    endpoint: str = ""
    region: str = ""
    access_key_id: str = ""
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    virtual_hosted: bool = False
    concurrency: int = field(default=16, validator=ge(1))
    timeout: float = field(default=10.0, validator=gt(0))
    retries: int = field(default=2, validator=ge(0))

    def bucket(self) -> Bucket:
        """The client."""
        given = ("endpoint", "region", "access_key_id", "secret_access_key", "session_token")
        config: S3Config = {name: getattr(self, name) for name in given if getattr(self, name)}  # type: ignore[assignment]  # names of its own keys
        config["virtual_hosted_style_request"] = self.virtual_hosted
        limit = datetime.timedelta(seconds=self.timeout)
        client: ClientConfig = {
            "timeout": limit,
            "connect_timeout": limit,
            "allow_http": self.endpoint.startswith("http://"),
        }
        return Bucket(
            urlsplit(self.location).netloc,
            config=config,
            client_options=client,
            retry_config={"max_retries": self.retries, "retry_timeout": limit},
        )


class S3Store:
    """Objects in a bucket."""

    def __init__(self, options: Mapping[str, object], *, buffers: Sequence[memoryview]) -> None:
        self._options = read_options(S3Options, options, store="s3")
        prefix = urlsplit(self._options.location).path.strip("/")
        self._prefix = f"{prefix}/" if prefix else ""
        self._counts = Counter({"failed": 0})
        self._calls = RunningCalls()
        with self._errors():
            self._bucket = self._options.bucket()
            next(iter(obstore.list(self._bucket, self._prefix or None, chunk_size=1)), None)
        self._threads = ThreadPoolExecutor(self._options.concurrency, "l3-s3")

    @property
    def failures_retire(self) -> bool:
        """A call that raises has waited for all its parts."""
        return True

    def batch_exists(self, keys: Sequence[str]) -> list[bool]:
        """Which keys have an object."""
        return self._each(self._exists, keys)

    def batch_get_into(self, keys: Sequence[str], pages: Sequence[memoryview]) -> IoResult:
        """Read objects into pages."""
        pairs = list(zip(keys, pages, strict=True))
        found = self._each(lambda pair: self._get(*pair), pairs)
        return IoResult([each is True for each in found], [each is False for each in found])

    def batch_put_from(self, keys: Sequence[str], pages: Sequence[memoryview]) -> IoResult:
        """Write pages to objects."""
        pairs = list(zip(keys, pages, strict=True))
        return IoResult(self._each(lambda pair: self._put(*pair), pairs))

    def remove_by_prefix(self, prefix: str) -> bool:
        """Delete all objects of a namespace, and look again whether there are more."""
        start = f"{self._prefix}{safe_name(prefix.removesuffix('/'))}/"
        while self._remove_some(start):
            pass  # a page is a call, so that the end waits for one and not for all
        return True

    def close(self) -> None:
        """Wait for running calls and end the threads."""
        if self._calls.close():
            self._threads.shutdown()

    def counts(self) -> Mapping[str, int]:
        """Objects that were damaged."""
        return dict(self._counts)

    # --- for commands ----------------------------------------------------------------------------

    def objects(self) -> Iterator[StoredObject]:
        """All objects that are called as ours are, or whose head names a key."""
        with self._errors():
            for found in obstore.list(self._bucket, self._prefix or None, chunk_size=LIST):
                yield from filter(None, self._each(self._look, found))

    def check(self, key: str) -> str | None:
        """What is wrong with an object."""
        with self._calls, self._errors():
            try:
                data = bytes(obstore.get(self._bucket, self._path(key)).bytes())
            except FileNotFoundError:
                raise KeyError(key) from None
        return problem_of(key, data)

    def remove(self, key: str) -> bool:
        """Delete one object."""
        if not self.batch_exists([key])[0]:
            return False
        with self._calls, self._errors():
            obstore.delete(self._bucket, self._path(key))
        return True

    # --- inside ----------------------------------------------------------------------------------

    def _exists(self, key: str) -> bool:
        try:
            obstore.head(self._bucket, self._path(key))
        except FileNotFoundError:
            return False
        return True

    def _get(self, key: str, page: memoryview) -> bool | None:
        """True: the page holds the object; False: the object is bad, and deleted; None: none."""
        path, length = self._path(key), head_size(key)
        try:
            found = obstore.get(self._bucket, path)
            if found.meta["size"] == length + len(page):
                data = memoryview(found.bytes())
                page[:] = data[length:]
                if data[:length] == head_of(key, page):
                    return True
        except FileNotFoundError as error:
            if NO_BUCKET in str(error):
                raise
            return None
        self._counts["failed"] += 1
        with suppress(BaseError, OSError):
            # Where it may not be deleted it stays, and fails each time.
            obstore.delete(self._bucket, path)
        return False

    def _put(self, key: str, page: memoryview) -> bool:
        data = b"".join([head_of(key, page), page])
        obstore.put(self._bucket, self._path(key), data, use_multipart=False)
        return True

    def _remove_some(self, start: str) -> bool:
        """Delete a page of what begins so; whether there was any."""
        with self._calls, self._errors():
            found = next(iter(obstore.list(self._bucket, start, chunk_size=LIST)), None)
            if found:
                obstore.delete(self._bucket, [each["path"] for each in found])
        return bool(found)

    def _look(self, facts: obstore.ObjectMeta) -> StoredObject | None:
        """An object by its key, which is read from it only where its name does not say that it is
        ours. Others may have anything in the bucket, and it must not be taken for an object."""
        path = facts["path"].removeprefix(self._prefix)
        key = path if OBJECT.fullmatch(path) else self._key_in(facts)
        if key is None or self._path(key) != facts["path"]:
            return None
        age = datetime.datetime.now(datetime.UTC) - facts["last_modified"]
        size = max(0, facts["size"] - head_size(key))
        return StoredObject(key, size, max(0.0, age.total_seconds()))

    def _key_in(self, facts: obstore.ObjectMeta) -> str | None:
        path = facts["path"]
        try:
            # Asked for a range that is all of an object, some servers do not answer with a range.
            if facts["size"] <= LONGEST_HEAD:
                return key_of(bytes(obstore.get(self._bucket, path).bytes()))
            return key_of(bytes(obstore.get_range(self._bucket, path, start=0, end=LONGEST_HEAD)))
        except FileNotFoundError:
            return None  # it went meanwhile

    def _path(self, key: str) -> str:
        namespace, slash, name = key.partition("/")
        return f"{self._prefix}{safe_name(namespace)}/{safe_name(name) if slash else '~'}"

    def _each(self, act: Callable[[Item], Answer], items: Sequence[Item]) -> list[Answer]:
        """Do it for all items at once, and raise only when none of them runs any more."""
        with self._calls, self._errors():
            running = [self._threads.submit(act, item) for item in items]
            errors = [each.exception() for each in running]
            for error in filter(None, errors):
                raise error
            return [each.result() for each in running]

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError) as error:
            where = self._options.endpoint or "AWS"
            text = str(error).partition("\n")[0]
            raise StoreError(f"S3 {self._options.location} at {where}: {text}") from error
