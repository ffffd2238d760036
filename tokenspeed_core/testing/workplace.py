# SPDX-License-Identifier: MIT
"""A place outside the checkout, where a package is made, installed and tried as by its author.

A folder, and an environment that sees what is installed here; what is installed into it is gone
with it. Nothing is fetched: what a package needs is there, or its installation fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from attrs import frozen

SCRIPTS = {
    "tokenspeed": "from tokenspeed_core.cli.main import main",
    "pytest": "from pytest import console_main as main",
    "pip": "from pip._internal.cli.main import main",
}
OFFLINE = {
    "PIP_NO_INDEX": "1",
    "PIP_NO_BUILD_ISOLATION": "0",  # pip's own way to say: without isolation
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}
NOT_THERE = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")


@frozen
class Ran:
    """What a line did: its exit code, and what it wrote to both outputs."""

    code: int
    said: str


@frozen
class Workplace:
    """Runs shell lines in `folder`, with `environment` first on the path."""

    folder: Path
    environment: Path

    def run(self, line: str) -> Ran:
        """Run one line."""
        path = os.pathsep.join([str(self.environment / "bin"), os.environ["PATH"]])
        around = {k: v for k, v in os.environ.items() if k not in NOT_THERE}
        done = subprocess.run(
            ["bash", "-c", line],
            cwd=self.folder,
            env={**around, **OFFLINE, "PATH": path, "COLUMNS": "100"},
            text=True,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        return Ran(done.returncode, done.stdout)

    def must(self, line: str) -> str:
        """Run a line; returns what it said. AssertionError, with that, if it fails."""
        ran = self.run(line)
        assert ran.code == 0, f"{line}\n{ran.said}"
        return ran.said


def make_workplace(root: Path) -> Workplace:
    """Make the folder and the environment below `root`."""
    environment, folder = root / "environment", root / "work"
    venv.create(environment, with_pip=False, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    # A line of code, so that the links of editable packages there are followed, too.
    line = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (packages / "ours.pth").write_text(line)
    python = environment / "bin" / "python"
    for name, line in SCRIPTS.items():
        script = environment / "bin" / name
        script.write_text(f"#!{python}\nimport sys\n{line}\nsys.exit(main())\n")
        script.chmod(0o755)
    folder.mkdir()
    assert python.exists(), f"{sys.executable} made no environment"
    return Workplace(folder, environment)
