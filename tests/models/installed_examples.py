"""Installed packages that bring families, as pip would leave them in a folder."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

#: A family file in full: transformers learns its model type, NormLens its adapter.
FAMILY = '''
"""A made-up encoder with BERT's block."""

from transformers import AutoConfig, AutoModel, BertConfig, BertModel

import normlens
from normlens.families.bert import Bert
from normlens.models.tiny import ENCODER


class NewConfig(BertConfig):
    model_type = "brand-new"


class NewModel(BertModel):
    config_class = NewConfig


AutoConfig.register("brand-new", NewConfig)
AutoModel.register(NewConfig, NewModel)


@normlens.register("brand-new", tiny=ENCODER)
class BrandNew(Bert):
    """Nothing differs."""
'''


def install(folder: Path, package: str, module: str, code: str) -> Path:
    """Put a package with one module into a folder, with the entry point that names it."""
    folder.mkdir(exist_ok=True)
    (folder / f"{module}.py").write_text(code)
    about = folder / f"{package.replace('-', '_')}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[normlens.families]\n{module} = {module}\n")
    return folder


def python(*words: str, path: Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run Python with a folder in front of everything else that can be imported."""
    paths = [str(path), *filter(None, [os.environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
    )
