# SPDX-License-Identifier: MIT
"""What the checkout promises about its distributions and its two commands."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PLUGIN_GROUPS = ("tokenspeed.plugins", "tokenspeed.frontends")
PROJECTS = {
    file.parent.relative_to(ROOT).as_posix(): tomllib.loads(file.read_text(encoding="utf-8"))
    for file in [
        ROOT / "pyproject.toml",
        *ROOT.glob("*/pyproject.toml"),
        *ROOT.glob("plugins/*/pyproject.toml"),
    ]
}


def _shell_lines(document: str) -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / document).read_text("utf-8"), re.M | re.S)
    return [line.split("#")[0].strip() for block in blocks for line in block.splitlines()]


def _recipes(*targets: str) -> list[str]:
    """The lines make runs for these targets, with the Makefile's own values filled in."""
    text = (ROOT / "Makefile").read_text("utf-8")
    values = dict(re.findall(r"^(\w+) \?= (.*)$", text, re.M))
    filled = re.sub(r"\$\((\w+)\)", lambda found: values.get(found[1], found[0]), text)
    rules = dict(re.findall(r"^([^\s:=]+):.*\n((?:\t.*\n)*)", filled, re.M))
    return [line.strip() for target in targets for line in rules[target].splitlines()]


def test_requirements_name_every_distribution() -> None:
    """One pip command installs each distribution of the repository."""
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    named = {line[3:].removesuffix("[test]") for line in lines if line.startswith("-e ")}
    assert named == set(PROJECTS)


def test_a_plugin_has_one_name() -> None:
    """Folder, distribution, package and entry point of a plugin follow one rule."""
    for folder in (place for place in PROJECTS if place.startswith("plugins/")):
        name = folder.removeprefix("plugins/")
        project = PROJECTS[folder]["project"]
        assert project["name"] == f"tokenspeed-{name.replace('_', '-')}"
        points = project["entry-points"]
        assert [name] in [list(points.get(group, ())) for group in PLUGIN_GROUPS]
        assert (ROOT / folder / "src" / f"tokenspeed_{name}" / "py.typed").exists()


@pytest.mark.parametrize("folder", sorted(PROJECTS))
def test_distributions_agree_on_python_and_licence(folder: str) -> None:
    """Every distribution declares the Python versions the scheduler wheel exists for, and MIT."""
    project = PROJECTS[folder]["project"]
    assert (project["requires-python"], project["license"]) == (">=3.11,<3.14", "MIT")


@pytest.mark.parametrize("target", ["run", "test"])
def test_the_readme_shows_what_make_runs(target: str) -> None:
    """Each line that make runs for a README command stands in the README as a plain line."""
    shown = _shell_lines("README.md")
    ran = _recipes(".venv/bin/pip", ".venv/.installed", target)
    assert f"make {target}" in shown
    assert len(ran) == 4
    assert [line for line in ran if line not in shown and not line.startswith("@")] == []


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(document: str) -> None:
    """A relative link of a top document names a file of the repository."""
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / document).read_text("utf-8"))
    assert [link for link in links if not (ROOT / link).exists()] == []
