# SPDX-License-Identifier: MIT
"""Writing the package: which file comes from which text, and what its names are."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from string import Template

from attrs import frozen

from tokenspeed_core.composition.built_in import built_in
from tokenspeed_core.composition.plugin_class import NAME, TAKEN
from tokenspeed_core.errors import ConfigError

FOLDER = "files"
PLACES: Mapping[str, str] = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "init.py": "src/$package/__init__.py",
    "plugin.py": "src/$package/plugin.py",
    "extension.py": "src/$package/extension.py",
    "samples.py": "src/$package/samples.py",
    "test_contract.py": "tests/test_contract.py",
    "test_plugin.py": "tests/test_$name.py",
}
MARKER = "src/$package/py.typed"


@frozen
class NewPackage:
    """A plugin's names: `my_plugin`, `tokenspeed-my-plugin`, `tokenspeed_my_plugin`, `MyPlugin`."""

    name: str

    @property
    def distribution(self) -> str:
        """What pip calls it."""
        return f"tokenspeed-{self.name.replace('_', '-')}"

    @property
    def package(self) -> str:
        """What Python calls it."""
        return f"tokenspeed_{self.name}"

    @property
    def class_name(self) -> str:
        """What its class is called."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    def problems(self) -> list[str]:
        """Why no plugin can have this name."""
        if not NAME.fullmatch(self.name):
            return [f"{self.name!r} is no plugin name: expected lower-case words joined by _"]
        if self.name in TAKEN or self.name in built_in():
            return [f"the name {self.name!r} is taken by the engine itself"]
        return []

    def write(self, into: Path) -> Path:
        """Write the package into a new folder of its distribution's name; returns that folder.

        ConfigError: the name cannot be a plugin's, or the folder exists. OSError as the disk says.
        """
        if problems := self.problems():
            raise ConfigError(problems)
        folder = into / self.distribution
        if folder.exists():
            raise ConfigError([f"{folder} exists already; remove it, or write --into elsewhere"])
        for source, place in PLACES.items():
            text = files("tokenspeed_core.template").joinpath(FOLDER, f"{source}.txt")
            self._write(folder, place, text=self._filled(text.read_text(encoding="utf-8")))
        self._write(folder, MARKER, text="")
        return folder

    def _write(self, folder: Path, place: str, *, text: str) -> None:
        path = folder / self._filled(place)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def _filled(self, text: str) -> str:
        return Template(text).substitute(
            name=self.name,
            flag=self.name.replace("_", "-"),
            distribution=self.distribution,
            package=self.package,
            class_name=self.class_name,
        )
