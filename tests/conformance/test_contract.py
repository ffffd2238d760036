# SPDX-License-Identifier: MIT
"""The class of tests and the command hold a plugin to the same checks."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tokenspeed_core.cli.main import main
from tokenspeed_core.composition.discovery import installed
from tokenspeed_core.testing import PluginContract
from tokenspeed_core.testing.conformance.checks import CHECKS, check_named
from tokenspeed_core.testing.conformance.declarations import HEAVY
from tokenspeed_core.testing.conformance.subject import installed_subject
from tokenspeed_core.testing.site import PLUGIN, Site

MODULES = {
    "imports_torch": ("import torch", "imports torch"),
    "starts_a_thread": (
        "import threading; threading.Thread(target=threading.Event().wait, name='early').start()",
        "starts a thread: early",
    ),
    "opens_a_socket": ("import socket; kept = socket.socket()", "opens a socket"),
    "opens_a_file": ("kept = open('/dev/null')", "leaves 1 files open"),
    "speaks": ("print('hello')", "writes to standard output: 'hello'"),
    "imports_the_engine": ("import tokenspeed_core", "imports the engine"),
}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """An empty place for distributions; what is imported from it is forgotten afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    yield Site(tmp_path)
    for name in set(sys.modules) - before:
        if name.startswith("other_"):
            del sys.modules[name]


def _checked(name: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, list[str]]]:
    code = main(["check", "--json", name])
    (plugin,) = json.loads(capsys.readouterr().out)["plugins"]
    return code, {each["name"]: each["problems"] for each in plugin["checks"] if each["problems"]}


def test_each_check_is_a_test() -> None:
    """The class that plugins inherit runs every check that the command runs."""
    source = inspect.getsource(PluginContract)
    assert [check.name for check in CHECKS if f'_hold("{check.name}")' not in source] == []


def test_an_installed_plugin_passes(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """The command finds a plugin by its entry point and finds nothing wrong."""
    site.install("right")
    assert main(["check", "right"]) == 0
    said = capsys.readouterr().out
    assert [check.name for check in CHECKS if f"✓ {check.name}" not in said] == []


def test_a_broken_import_is_a_finding(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """A plugin that cannot be imported has failed its first check, with the reason."""
    site.install("broken", source="import nothing_of_this_name")
    code, found = _checked("broken", capsys)
    assert code == 1
    assert "No module named 'nothing_of_this_name'" in found["class"][0]


def test_samples_that_are_not_there_are_a_finding(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    """An entry point of samples that leads nowhere fails the first check, with its name."""
    module = site.install("sampled")
    points = site.folder / f"{module}-1.5.dist-info" / "entry_points.txt"
    points.write_text(f"{points.read_text()}[tokenspeed.samples]\nsampled = {module}:gone\n")
    code, found = _checked("sampled", capsys)
    assert code == 1
    assert f"tokenspeed.samples 'sampled': {module}:gone gives no features" in found["class"][0]


@pytest.mark.parametrize("name", MODULES)
def test_a_heavy_import_is_found(name: str, site: Site) -> None:
    """Importing a plugin's module must be light and start nothing; what it does is named."""
    line, told = MODULES[name]
    (site.folder / "torch.py").touch()  # one that is light, so that the test is quick
    module = site.install(name, source=f"{PLUGIN}\nif __name__ not in KEPT:\n    {line}\n")
    text = (site.folder / f"{module}.py").read_text()
    guard = "import sys\nKEPT = {'x'} if 'pytest' not in sys.modules else {__name__}\n"
    (site.folder / f"{module}.py").write_text(guard + text)
    subject = installed_subject(installed().plugins[name], options={})
    assert told in "\n".join(check_named("import").run(subject).problems)


def test_torch_is_heavy() -> None:
    """The list of heavy imports begins with what most plugins would be tempted by."""
    assert HEAVY[0] == "torch"


def test_an_unknown_plugin_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that is not installed is answered with the nearest one."""
    assert main(["check", "batch_lok"]) == 2
    assert "did you mean 'batch_log'" in capsys.readouterr().err
