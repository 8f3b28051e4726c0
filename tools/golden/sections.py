"""What the golden set consists of: sections, their groups, and what makes each of them."""

from __future__ import annotations

import os
import traceback
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from golden.results import Values

ROOT = Path(__file__).resolve().parents[2]
SECTIONS = ("numbers", "gpu", "signatures", "help", "errors", "tables", "studies", "files")
#: The item of a group that could not be made.
FAILED = "failed"
#: Sections whose texts are the same letter by letter; in others decimals have the tolerance.
EXACT = ("signatures", "help", "errors")
#: Where a run of a command may not look, and how wide and plain it prints.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "OMP_NUM_THREADS": "1",
    "MPLBACKEND": "Agg",
    "COLUMNS": "200",
    "NO_COLOR": "1",
    "TERM": "dumb",
}


@dataclass(frozen=True)
class Job:
    """One group to make, with what `make` stored for it and the folders of saved results."""

    section: str
    group: str
    about: dict[str, Any]
    kept: Path
    opened: Path


def about_this() -> dict[str, Any]:
    """What comparisons begin with: configurations, documented names, versions of other packages."""
    from golden import models, texts

    return {
        "versions": versions(),
        "families": models.settings_of_families(),
        "documented": texts.documented_names(ROOT),
    }


def versions() -> dict[str, str]:
    """The versions of the packages on which numbers depend."""
    _prepare()
    import numpy
    import torch
    import transformers

    return {package.__name__: package.__version__ for package in (torch, transformers, numpy)}


def groups_of(section: str, about: dict[str, Any], wanted: list[str] | None) -> list[str]:
    """The groups of a section; `wanted` chooses among families."""
    from golden import families, runs

    every = {
        "numbers": [*about["families"], *families.EMBEDDED],
        "gpu": [*families.KINDS, families.EMBEDDED[0]],
        "signatures": ["public"],
        "help": ["commands"],
        "errors": ["commands", "python"],
        "tables": [*runs.RUNS],
        "studies": [*runs.STUDIES],
        "files": ["results", "output"],
    }[section]
    by_family = wanted is not None and section in ("numbers", "gpu")
    return [group for group in every if not by_family or group in (wanted or ())]


def made(jobs: list[Job], processes: int) -> Iterator[tuple[Job, Values | None]]:
    """Each job with its values, as they are done; None where there is no GPU for it."""
    if not processes:
        for job in jobs:
            yield job, _make(job)
        return
    for on_gpu in (False, True):
        chosen = [job for job in jobs if (job.section == "gpu") == on_gpu]
        # Devices are chosen when torch is imported: all but one section see none but the CPU.
        before = os.environ.get("CUDA_VISIBLE_DEVICES")
        if not on_gpu:
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        try:
            with ProcessPoolExecutor(processes, get_context("spawn"), _prepare) as pool:
                yield from zip(chosen, pool.map(_make, chosen), strict=True) if chosen else ()
        finally:
            if not on_gpu:
                os.environ.pop("CUDA_VISIBLE_DEVICES", None)
                os.environ |= {} if before is None else {"CUDA_VISIBLE_DEVICES": before}


def _prepare() -> None:
    """Make a process work alone, quietly and with one thread."""
    import logging
    import warnings

    os.environ.update(ENVIRONMENT)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    import torch
    from transformers.utils import logging as of_transformers

    torch.set_num_threads(1)
    of_transformers.set_verbosity_error()
    of_transformers.disable_progress_bar()


def _make(job: Job) -> Values | None:
    """The values of one group; an exception that ends it is its only one."""
    try:
        return _values(job)
    except Exception:
        return {FAILED: traceback.format_exc()}


def _values(job: Job) -> Values | None:
    import torch

    from golden import families, files, runs, texts, wrong_calls

    settings, group = job.about["families"], job.group
    if job.section == "gpu" and not torch.cuda.is_available():
        return None
    if job.section in ("numbers", "gpu"):
        device = "cuda" if job.section == "gpu" else "cpu"
        if group in families.EMBEDDED:
            return families.embedded_numbers(group, device)
        return families.family_numbers(group, settings[group], device)
    makers = {
        "signatures/public": partial(texts.signatures, job.about["documented"]),
        "help/commands": texts.help_pages,
        "errors/commands": partial(wrong_calls.wrong_commands, settings),
        "errors/python": partial(wrong_calls.wrong_calls, settings),
        "files/results": partial(files.saved_files, settings, job.kept, job.opened),
        "files/output": partial(files.command_output, settings),
        **{f"tables/{name}": partial(runs.run_tables, name, settings) for name in runs.RUNS},
        **{f"studies/{name}": partial(runs.study_tables, name, settings) for name in runs.STUDIES},
    }
    return makers[f"{job.section}/{group}"]()
