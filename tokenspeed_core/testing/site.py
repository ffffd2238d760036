# SPDX-License-Identifier: MIT
"""Plugins that are installed for one test: distributions written to a folder on the path."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from attrs import define

PLUGIN = """
from tokenspeed_hookspecs import Plugin, Round, hookimpl

class Installed(Plugin):
    name = "{name}"

    @hookimpl
    def planned(self, round: Round) -> None:
        pass
"""


@define
class Site:
    """A folder where distributions are installed; put it on the path before."""

    folder: Path

    def install(
        self,
        name: str,
        *,
        distribution: str | None = None,
        source: str = PLUGIN,
        requires: Sequence[str] = (),
    ) -> str:
        """Install a distribution (version 1.5) whose entry point `name` is the class `Installed` of
        `source`; returns its module. The same distribution again gets one more entry point."""
        distribution = distribution or f"other-{name.replace('_', '-')}"
        module = distribution.replace("-", "_")
        (self.folder / f"{module}.py").write_text(textwrap.dedent(source).replace("{name}", name))
        info = self.folder / f"{module}-1.5.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        head = ["Metadata-Version: 2.1", f"Name: {distribution}", "Version: 1.5"]
        needs = [f"Requires-Dist: {each}" for each in requires]
        (info / "METADATA").write_text("\n".join([*head, *needs]) + "\n")
        points = info / "entry_points.txt"
        before = points.read_text() if points.exists() else "[tokenspeed.plugins]\n"
        points.write_text(f"{before}{name} = {module}:Installed\n")
        return module
