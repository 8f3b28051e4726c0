"""The command line, run in this process, and a folder of small models and files for it."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save_file

import normlens
from golden.models import LONG, SHORT, build, config_of, save
from golden.results import in_words

SENTENCES = [
    *("the cat sat on a mat .", "a dog ran and the cats sat .", "the red dog is on the mat ."),
    *("a cat and a dog sat .", "dogs ran .", "the mat is red and the mats is a mat ."),
    *("a red cat ran on the red mat .", "the dog sat .", "cats and dogs ran and sat ."),
    *("the dogs is on a mat and the cat is on a mat .", "a b c d .", "on the mat a cat sat ."),
]


def run_command(words: Sequence[Any], stdin: str = "") -> tuple[int | str, str, str]:
    """The exit status and both streams; the status of a crash is the exception."""
    from normlens.cli import main

    out, err, before = io.StringIO(), io.StringIO(), sys.stdin
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin.encode()))
    try:
        with redirect_stdout(out), redirect_stderr(err):
            status: int | str = main([str(word) for word in words])
    except SystemExit as error:
        status = f"SystemExit({error.code})"
    except Exception as error:
        status = in_words(error)
    finally:
        sys.stdin = before
    here = os.getcwd()
    return status, out.getvalue().replace(here, "HERE"), err.getvalue().replace(here, "HERE")


@contextmanager
def folder_of_examples(settings: dict[str, dict[str, Any]]) -> Iterator[Path]:
    """Work in a new folder of small models, texts, results and damaged files."""
    before, folder = Path.cwd(), Path(mkdtemp(prefix="golden-"))
    try:
        os.chdir(folder)
        _fill(settings)
        yield folder
    finally:
        os.chdir(before)
        shutil.rmtree(folder)


def _fill(settings: dict[str, dict[str, Any]]) -> None:
    here = Path()
    for family, task in (("bert", "MaskedLM"), ("gpt2", "CausalLM"), ("bart", "Seq2SeqLM")):
        save(here / family, family, settings[family], task)
    save(here / "encoder", "bert", settings["bert"])
    save(here / "mixtral", "mixtral", settings["mixtral"], "CausalLM")
    save(here / "classifier", "bert", settings["bert"], "SequenceClassification")
    vit = build(config_of("vit", settings["vit"]), "ImageClassification")
    vit.save_pretrained(here / "vit")
    for name in ("no-config", "no-weights", "no-json", "unknown-type"):
        shutil.copytree(here / "bert", here / name)
    (here / "no-config" / "config.json").unlink()
    (here / "no-weights" / "model.safetensors").unlink()
    (here / "no-json" / "config.json").write_text("{no json")
    (here / "unknown-type" / "config.json").write_text('{"model_type": "xlnet"}')
    (here / "here.csv").mkdir()
    (here / "data.txt").write_text("\n".join(SENTENCES) + "\n")
    (here / "long.txt").write_text("the " * 60)
    (here / "empty.txt").write_text("")
    (here / "latin.txt").write_bytes(b"caf\xe9")
    (here / "table.csv").write_text("text,label\na cat,0\nthe dog,1\n")
    (here / "pairs.txt").write_text("the cat sat ||| a dog ran\na red mat ||| the mat is red\n")
    (here / "pairs.gold").write_text("0-0 1-1\n0-0 1p2\n")
    lens = normlens.load("bert", device="cpu")
    lens.maps(LONG).save("maps.safetensors")
    lens.explain("a [MASK] ran").save("why.safetensors")
    lens.cosine(LONG, SHORT).save("cosine.safetensors")
    whole = (here / "maps.safetensors").read_bytes()
    (here / "short.safetensors").write_bytes(whole[:-500])
    (here / "garbage.safetensors").write_bytes(b"no tensors here " * 64)
    save_file({"a": np.zeros(3)}, "foreign.safetensors")
    with safe_open("maps.safetensors", framework="numpy") as file:
        arrays, header = {key: file.get_tensor(key) for key in file.keys()}, file.metadata()  # noqa: SIM118
    save_file(arrays, "newer.safetensors", metadata={**header, "version": "999"})
    name = next(name for name in arrays if name.startswith("arrays/"))
    smaller = {**arrays, name: arrays[name][:, :2].copy()}
    save_file(smaller, "misfit.safetensors", metadata=header)
    normlens.run("bert", "data.txt", "run", limit=3, device="cpu")
