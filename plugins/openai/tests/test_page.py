# SPDX-License-Identifier: MIT
"""The page at `/`, in a headless Chromium that is driven over its debugging pipe."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe")
COMPOSITION: Mapping[str, Any] = {
    "plugins": [{"name": "store", "state": "loaded", "source": "own 1.0", "hooks": ["committed"]}],
    "hooks": {"committed": ["store"]},
}


class Browser:
    """One page; `complaints` are errors of its script and what its policy forbade."""

    def __init__(self, command: str, folder: Path) -> None:
        its_read, self._write = os.pipe()
        self._read, its_write = os.pipe()
        # The browser talks over its descriptors 3 and 4.
        line = f'exec "$0" "$@" 3<&{its_read} 4>&{its_write}'
        started = ["bash", "-c", line, command, *FLAGS, f"--user-data-dir={folder}"]
        self._process = subprocess.Popen(
            started, pass_fds=(its_read, its_write), stderr=subprocess.DEVNULL
        )
        os.close(its_read)
        os.close(its_write)
        self.complaints: list[str] = []
        self._received = b""
        self._number = 0
        self._session: dict[str, str] = {}
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def open(self, url: str) -> None:
        """Go to an address."""
        self._call("Page.navigate", url=url)

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        return self._call("Runtime.evaluate", expression=script)["result"].get("value")

    def text(self, place: str) -> str:
        """What stands at the first element that a CSS selector finds."""
        return str(self.run(f"document.querySelector({json.dumps(place)})?.textContent ?? ''"))

    def until(self, place: str, words: str) -> str:
        """Wait until words stand somewhere; returns all that stands there."""
        for _ in range(1000):
            if words in (found := self.text(place)):
                return found
            time.sleep(0.02)
        raise AssertionError(f"{place} never had {words!r}, but {self.text(place)!r}")

    def close(self) -> None:
        """End the browser."""
        self._process.terminate()
        self._process.wait()
        os.close(self._read)
        os.close(self._write)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        call = {"id": self._number, "method": method, "params": parameters, **self._session}
        os.write(self._write, json.dumps(call).encode() + b"\0")
        while (message := self._next()).get("id") != self._number:
            if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.complaints.append(json.dumps(message["params"]))
        assert "error" not in message, message
        result: dict[str, Any] = message["result"]
        return result

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            self._received += os.read(self._read, 1 << 16)
        found, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(found)
        return message


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Browser]:
    """A browser with a fresh profile."""
    command = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if command is None and "CI" not in os.environ:
        pytest.skip("there is no Chromium; Debian has it as chromium-headless-shell")
    assert command is not None, "no Chromium, which .ci/run should have installed"
    browser = Browser(command, tmp_path)
    yield browser
    browser.close()


def test_the_page_is_alive(start: Any, browser: Browser) -> None:
    """The page shows what the engine is made of, streams a chat, and moves while it does."""
    site = start(composition=COMPOSITION, plane={"forward_ms": 5.0})
    browser.open(site.url)
    browser.until("#model", "scripted")
    browser.until("#state", "running")
    assert browser.until("#hooks", "commit") == "commitcommittedstore"
    browser.until("#plugins", "own 1.0")
    assert browser.text("#tokens") == "0"
    browser.run("at('say').value = '<b>hi'; at('ask').requestSubmit()")
    browser.until("#talk .assistant", "1000 1001")
    browser.until("#running", "1")
    browser.until("#send", "Send")
    assert browser.text("#talk .user") == "<b>hi"
    assert browser.text("#talk .assistant").endswith(" 1489")
    browser.until("#running", "0")
    assert float(browser.run("Math.max(...speeds)")) > 0
    assert browser.complaints == []


def test_a_chat_can_be_stopped(start: Any, browser: Browser) -> None:
    """The button ends an answer that is under way, in the engine as well."""
    site = start(plane={"forward_ms": 20.0})
    browser.open(site.url)
    browser.until("#model", "scripted")
    browser.run("at('say').value = 'hi'; at('ask').requestSubmit()")
    browser.until("#talk .assistant", "1000")
    browser.run("at('ask').requestSubmit()")
    browser.until("#send", "Send")
    site.until(lambda: site.tokens_given)
    assert max(site.tokens_given.values()) < 300


def test_the_page_asks_for_a_key(start: Any, browser: Browser) -> None:
    """Where clients need a key the page takes one, and then chats."""
    site = start(api_key="secret")
    browser.open(site.url)
    browser.until("#model", "scripted")
    browser.run("at('say').value = 'hi'; at('ask').requestSubmit()")
    browser.until("#talk .error", "key")
    browser.run("at('key').value = 'secret'; at('say').value = 'hi'; at('ask').requestSubmit()")
    browser.until("#talk", "1000 1001")
    assert browser.run("at('key').hidden") is False


def test_the_page_tells_of_a_dead_engine(start: Any, browser: Browser) -> None:
    """When the engine dies the page says so."""
    site = start()
    browser.open(site.url)
    browser.until("#state", "running")
    site.engine.stop()
    browser.until("#state", "failed")
