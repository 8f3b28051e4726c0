"""Load a small model of every model type of the installed transformers, and say what became of it.

    python tools/family_survey.py [--only WORD] [--json FILE] [--jobs N]

Each type is tried in a process of its own, with limits of time and memory:

    supported      maps were made, and parts and bias add up to the model's vectors
    refused        an error of one line says why such layers have no exact map, or which model
                   inside to pass, and that one has maps
    unknown        an error of one line says that nobody has written an adapter yet
    not buildable  no small configuration could be made from the names of the settings
    FAILED         anything else: a traceback, an incomplete map, an error of several lines

Exit status 1 if any failed. Registered families are tried with their tiny configuration, too.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import resource
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from small_configs import NotBuildable, small_model

import normlens
from normlens.errors import NormLensError, UnsupportedModelError, reason_of
from normlens.models import adapter_class, supported_families
from normlens.models.base import tiny_settings
from normlens.models.refusals import UnknownModelType
from normlens.models.tiny import scramble, tiny_model
from normlens.models.unwrapping import inner_models

SUPPORTED, REFUSED, UNKNOWN = "supported", "refused", "unknown"
NOT_BUILDABLE, FAILED = "not buildable", "FAILED"
VERDICTS = (SUPPORTED, REFUSED, UNKNOWN, NOT_BUILDABLE, FAILED)

SECONDS = 120  # for one model type
BYTES = 3 << 30  # that one model type may allocate
IDS = [3, 9, 27, 14, 5, 33, 8, 40, 12]
TARGET_IDS = [7, 12, 60, 22]
SAMPLES = 4000  # of sound: a dozen frames


@dataclass(frozen=True)
class Outcome:
    """What became of one model type."""

    model_type: str
    verdict: str
    detail: str = ""
    completeness: float | None = None

    @property
    def line(self) -> str:
        return f"{self.model_type:36} {self.verdict:14} {self.detail}".rstrip()


# One model type -----------------------------------------------------------------------------------


def survey(model_type: str) -> Outcome:
    """Load small models of a type and make maps, in this process."""
    if tiny_settings(model_type) is None or model_type not in supported_families():
        return survey_small(model_type)
    with_tiny = judged(model_type, tiny_model(model_type))
    if with_tiny.verdict != SUPPORTED:
        return Outcome(model_type, FAILED, f"its tiny configuration: {with_tiny.detail}")
    outcome = survey_small(model_type)
    return with_tiny if outcome.verdict == NOT_BUILDABLE else outcome


def survey_small(model_type: str) -> Outcome:
    """Load a small model of a type whose settings only have names, and make maps."""
    try:
        model = small_model(model_type)
    except NotBuildable as error:
        # The line that a user reads comes before any weights.
        refused = refused_by_configuration(model_type)
        return refused or Outcome(model_type, NOT_BUILDABLE, str(error))
    scramble(model)
    outcome = judged(model_type, model)
    return outcome if outcome.verdict != REFUSED else judged_inside(outcome, model)


def judged_inside(outcome: Outcome, model: Any) -> Outcome:
    """The outcome of a refused model, or of a model inside it that the error says to pass."""
    for path, inner in inner_models(model, supported_families()).items():
        if path in outcome.detail:
            inside = judged(outcome.model_type, inner)
            if inside.verdict == FAILED:
                return Outcome(outcome.model_type, FAILED, f".{path}: {inside.detail}")
    return outcome


def refused_by_configuration(model_type: str) -> Outcome | None:
    """The outcome where a configuration alone is refused; None where its adapter takes it."""
    from transformers import CONFIG_MAPPING

    try:
        adapter_class(CONFIG_MAPPING[model_type]())
    except UnsupportedModelError as error:
        return judged_error(model_type, error)
    except Exception as error:
        return Outcome(model_type, NOT_BUILDABLE, f"no default configuration: {reason_of(error)}")
    return None


def judged(model_type: str, model: Any) -> Outcome:
    """The outcome of loading a model and making maps of random input."""
    try:
        maps = maps_of(normlens.load(model, False), inputs_of(model))
    # What is not an error of NormLens is a traceback for the user.
    except Exception as error:
        outcome = judged_error(model_type, error)
        problem = None if outcome.verdict != FAILED else problem_of(model)
        return outcome if problem is None else Outcome(model_type, NOT_BUILDABLE, problem)
    arrays = [maps[scope] for scope in maps.scopes]
    if not all(np.isfinite(array).all() for array in arrays):
        return Outcome(model_type, FAILED, "maps that are not finite")
    detail = f"completeness {maps.completeness:.0e}"
    return Outcome(model_type, SUPPORTED, detail, maps.completeness)


def maps_of(lens: normlens.Lens, inputs: dict[str, Any]) -> normlens.Maps:
    """Maps of an input; a picture or a sound takes the place of a text."""
    signals = [inputs[name] for name in ("pixel_values", "input_values") if name in inputs]
    return lens.maps(torch.as_tensor(signals[0])) if signals else lens.maps(**inputs)


def judged_error(model_type: str, error: Exception) -> Outcome:
    """Whether an error says in one line what is wrong."""
    message = str(error)
    if not isinstance(error, NormLensError):
        return Outcome(model_type, FAILED, f"{type(error).__name__}: {reason_of(error)}")
    if not isinstance(error, UnsupportedModelError) or "\n" in message:
        return Outcome(model_type, FAILED, reason_of(error))
    verdict = UNKNOWN if isinstance(error, UnknownModelType) else REFUSED
    return Outcome(model_type, verdict, message)


def problem_of(model: Any) -> str | None:
    """Why a small model does not even run without NormLens; None if it does."""
    inputs = {name: torch.as_tensor(value)[None] for name, value in inputs_of(model).items()}
    try:
        with torch.no_grad():
            model(**inputs)
    except Exception as error:
        return f"the small model does not run: {type(error).__name__}: {reason_of(error)}"
    return None


def inputs_of(model: Any) -> dict[str, Any]:
    """What a model is called with: ids, a source and a target, a picture, or sound."""
    config, draw = model.config, np.random.default_rng(0).standard_normal
    inputs: dict[str, Any] = dict(input_ids=IDS)
    if model.main_input_name == "input_features":
        shape = config.num_mel_bins, 2 * config.max_source_positions
        inputs = dict(input_features=draw(shape, np.float32))
    elif model.main_input_name == "pixel_values":
        side = getattr(config, "image_size", 16)
        inputs = dict(pixel_values=draw((3, side, side), np.float32))
    elif model.main_input_name == "input_values":
        inputs = dict(input_values=draw(SAMPLES, np.float32))
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = TARGET_IDS
    return inputs


# Every model type ---------------------------------------------------------------------------------


def outcomes(model_types: list[str], jobs: int) -> Iterator[Outcome]:
    """The outcome of each type, in order; a few processes run at a time."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(in_a_process, model_types)


def in_a_process(model_type: str) -> Outcome:
    """`survey` in a process with limits, so that no type can take the machine or end the walk."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_survey_within_limits, args=(model_type, sender))
    process.start()
    sender.close()
    try:
        if not receiver.poll(SECONDS):
            return Outcome(model_type, NOT_BUILDABLE, f"takes more than {SECONDS} s")
        return receiver.recv()
    except EOFError:
        return Outcome(model_type, NOT_BUILDABLE, "the process ended by itself, or was killed")
    finally:
        process.kill()
        process.join()


def _survey_within_limits(model_type: str, sender: Connection) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    try:
        outcome = survey(model_type)
    except MemoryError:
        outcome = Outcome(model_type, NOT_BUILDABLE, f"takes more than {BYTES >> 20} MB")
    except Exception as error:
        outcome = Outcome(model_type, FAILED, f"{type(error).__name__}: {reason_of(error)}")
    sender.send(outcome)


def quiet() -> None:
    """Leave out what transformers says about models of random weights."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)


def summary(results: list[Outcome]) -> str:
    counts = Counter(outcome.verdict for outcome in results)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)


def main(arguments: list[str] | None = None) -> int:
    """Walk the model types, print a line for each, and return the exit status."""
    from transformers import CONFIG_MAPPING, __version__

    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--only", metavar="WORD", default="", help="types whose name has this word")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the outcomes there")
    parser.add_argument("--jobs", metavar="N", type=int, default=2, help="processes at a time")
    options = parser.parse_args(arguments)
    quiet()
    torch.set_num_threads(1)  # a process with threads cannot be forked safely
    survey("llama")  # whatever this imports need not be imported for each type
    model_types = sorted(name for name in CONFIG_MAPPING if options.only in name)
    results = []
    for outcome in outcomes(model_types, options.jobs):
        results.append(outcome)
        print(outcome.line, flush=True)
    print(f"\ntransformers {__version__}: {summary(results)}")
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(outcome) for outcome in results], indent=1))
    return int(any(outcome.verdict == FAILED for outcome in results))


if __name__ == "__main__":
    sys.exit(main())
