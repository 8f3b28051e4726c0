"""``normlens doctor``, ``estimate``, ``models``, ``demo`` and ``serve``."""

from __future__ import annotations

import json
import os
import sys
import threading
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normlens.cli import parameters
from normlens.cli.common import add_row, console_for, new_table, print_table, status
from normlens.cli.parameters import Fields, option, with_field_options
from normlens.errors import PAGE_SERVER, check_installed, valid_choice
from normlens.loading import embedded
from normlens.loading.embedded import DEFAULT
from normlens.loading.hub import shown_name
from normlens.options import AnalysisOptions, LoadOptions, at_least_one

if TYPE_CHECKING:
    import torch

    from normlens.lens import Lens
    from normlens.plan.estimate import Analysis, Estimate, ModelSizes, SourceGroup


# ``normlens doctor``: the installation, and a check of its numbers.


def doctor_command() -> None:
    """Versions, devices, models, and a check of the numbers; exit status 1 if the check fails."""
    from normlens.loading import doctor

    console = console_for()
    for section, facts in doctor.installation().items():
        table = new_table("", "", left=2)
        table.show_header = False
        for name, fact in facts.items():
            add_row(table, name, fact)
        print_table(console, section.capitalize(), table)
    checks = doctor.self_check()
    title = "Self-check: tiny models against a materialised computation in float64"
    table = new_table("model", "completeness", "difference", "result")
    for check in checks:
        result = "ok" if check.passed else "FAILED"
        numbers = f"{check.completeness:.1e}", f"{check.difference:.1e}"
        add_row(table, check.model_type, *numbers, result)
    print_table(console, title, table)
    if not all(check.passed for check in checks):
        print(
            "error: the self-check failed: maps on this machine cannot be trusted; reinstall "
            "normlens and torch, and report this output if it stays",
            file=sys.stderr,
        )
        raise typer.Exit(1)


# ``normlens estimate``: the cost of an analysis before it runs.


@with_field_options
def estimate_command(
    *,
    tokens: Annotated[
        int, option("N", "Length of the text; of a source, with its target.", "--tokens", "-n")
    ],
    target_tokens: Annotated[
        int | None, option("M", "Encoder–decoders: length of what the decoder reads.")
    ] = None,
    model: parameters.Model = None,
    asked: Annotated[
        AnalysisOptions, Fields(without=("seed", "batch_size", "map_dtype", "origin"))
    ],
    batch_size: Annotated[int, option("N", "Texts at a time.")] = 1,
    loading: Annotated[LoadOptions, Fields(without=("part", "device_map"))],
    as_json: parameters.Json = False,
) -> None:
    """Memory and operations of an analysis, before it runs and without the model's weights.

    The device need not be here: --device cuda assumes a GPU that runs the kernels.
    """
    at_least_one(tokens, "tokens")
    if target_tokens is not None:
        at_least_one(target_tokens, "target_tokens")
    at_least_one(batch_size, "batch_size")

    from normlens.loading.load import device_anywhere, dtype_to_load, load_config, pick_dtype
    from normlens.plan.estimate import (
        Analysis,
        check_lengths,
        check_memory_limit,
        estimate,
        layers_and_scopes,
        sizes_of,
        skeleton,
    )

    place = device_anywhere(loading.device)
    asked_dtype = pick_dtype(loading.dtype)
    config = load_config(
        model, revision=loading.revision, trust_remote_code=loading.trust_remote_code
    )
    stored = dtype_to_load(asked_dtype, config, place, model or DEFAULT)
    lens = skeleton(config, name=shown_name(model or DEFAULT))
    check_lengths(lens, tokens, target_tokens)
    limit = asked.settings.memory_limit
    assert limit is not None
    analysis = Analysis(
        tokens=tokens,
        target_tokens=target_tokens,
        **layers_and_scopes(lens, asked),
        batch=batch_size,
        heads=asked.heads,
        rule=asked.nonlinearity,
        samples=asked.samples,
        memory_limit=limit,
        device=str(place),
        precision=asked.precision,
    )
    kind = _checkpoint_dtype(config) if isinstance(stored, str) else stored
    sizes = sizes_of(lens, kind)
    if asked.memory_limit is not None:
        check_memory_limit(sizes, analysis)
    result = estimate(sizes, analysis)
    if as_json:
        print(json.dumps(_estimate_as_json(result, analysis), indent=2))
        return
    _show_estimate(lens, analysis, result, str(kind).removeprefix("torch."))
    _show_device(place, sizes, max(tokens, target_tokens or 0))


def _checkpoint_dtype(config: Any) -> torch.dtype:
    """The dtype that a checkpoint's configuration names; float32 where it names none."""
    import torch

    dtype = getattr(config, "dtype", None)
    return dtype if isinstance(dtype, torch.dtype) else torch.float32


def _estimate_as_json(result: Estimate, analysis: Analysis) -> dict[str, Any]:
    from normlens.plan.method import KernelPlan, Plan

    plan = result.plan
    tile = {"sources": plan.sources, "targets": plan.targets} if isinstance(plan, Plan) else None
    stages = [
        {
            "stage": stage.name,
            "method": stage.plan.method,
            "kernels": isinstance(stage.plan, KernelPlan),
            "tiles_per_layer": stage.tiles,
        }
        for stage in result.stages
    ]
    return {
        "device": analysis.device,
        "operations": {**result.operations, "total": result.total_operations},
        "memory": {**result.memory, "total": result.peak_memory},
        "method": None if plan is None else plan.method,
        "kernels": isinstance(plan, KernelPlan),
        "tile": tile,
        "tiles_per_layer": result.tiles,
        "published_way": result.published,
        **({"stages": stages} if len(stages) > 1 else {}),
    }


def _show_estimate(lens: Lens, analysis: Analysis, result: Estimate, dtype: str) -> None:
    console = console_for()
    console.print(
        f"{lens.name} ({lens.model_type}): {len(analysis.layers)} of {lens.n_layers} layers of "
        f"{lens.component_sequence}, {dtype} on {analysis.device}"
    )
    texts, scopes = f"{analysis.tokens} tokens", f"{len(analysis.scopes)} scopes"
    if analysis.target_tokens is not None:
        texts = f"({analysis.tokens} source + {analysis.target_tokens} target tokens)"
        scopes = f"{len(analysis.encoder_scopes)} scopes of the encoder and {scopes} of the decoder"
    console.print(
        f"{analysis.batch} × {texts}, {scopes}, memory limit {_bytes(analysis.memory_limit or 0)}"
    )
    memory = new_table("memory", "")
    for item, size in {**result.memory, "peak": result.peak_memory}.items():
        add_row(memory, item, _bytes(size))
    console.print(memory)
    work = new_table("operations", "")
    for item, count in {**result.operations, "total": result.total_operations}.items():
        add_row(work, item, _flop(count))
    console.print(work)
    for stage in result.stages:
        name = f" ({stage.name})" if stage.name else ""
        console.print(f"feed-forward stage{name}: {_described(stage, analysis)}")
    console.print(
        f"the published way holds n×n×H×d numbers per layer: {_bytes(result.published)} "
        f"(here: {_bytes(result.working_memory)} beside the model's weights)"
    )


def _described(stage: SourceGroup, analysis: Analysis) -> str:
    """The way through the feed-forward stage, in words."""
    from normlens.plan.method import KernelPlan

    plan = stage.plan
    if not isinstance(plan, KernelPlan):
        return (
            f"{plan.method}, {stage.tiles} of at most {plan.targets} targets "
            f"× {plan.sources} sources per layer and text"
        )
    return f"GPU kernels, {plan.method}, in {analysis.kernel_precision.name}"


def _show_device(place: torch.device, sizes: ModelSizes, tokens: int) -> None:
    """What the device has room for, if it is here."""
    from normlens.loading.load import is_elsewhere
    from normlens.plan.estimate import automatic_batch
    from normlens.plan.memory import free_memory

    console = console_for()
    if is_elsewhere(place):
        assumed = ": a GPU that runs the kernels is assumed" if place.type == "cuda" else ""
        console.print(f"{place} is not here{assumed}")
        return
    console.print(
        f"free memory here: {_bytes(free_memory(place))} ({place}); "
        f"automatic batch size: {automatic_batch(sizes, tokens, place)}"
    )


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def _flop(count: float) -> str:
    for unit in ("", "k", "M", "G", "T"):
        if count < 1000:
            return f"{count:.3g} {unit}FLOP"
        count /= 1000
    return f"{count:.3g} PFLOP"


# ``normlens models``: families and embedded models.


def models_command(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORD]...",
            help="Show the families with all of these words in their name or traits.",
            show_default=False,
        ),
    ] = None,
    install: Annotated[str | None, option("NAME", "Install an embedded model with pip.")] = None,
    as_json: parameters.Json = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the families as a Markdown table.")
    ] = False,
    quiet: parameters.Quiet = False,
) -> None:
    """Supported model families, and embedded models that need no download from the hub."""
    if install is not None:
        _install(install, quiet)
        return
    if as_markdown:
        from normlens.models.table import markdown_table

        print(markdown_table(words or []), end="")
    elif as_json:
        print(json.dumps(_models_as_json(words or []), indent=2, ensure_ascii=False))
    elif words:
        _show_families(words)
    else:
        _show_models()


def _install(name: str, quiet: bool) -> None:
    valid_choice(name, tuple(embedded.EMBEDDED), "embedded model")
    with status(f"installing {name}", quiet):
        embedded.install(name)
    if not quiet:
        print(f"installed {name}; use it with: normlens map --model {name} --text …")


def _models_as_json(words: list[str]) -> dict[str, Any]:
    from normlens.models.table import search_families

    return {
        "families": [
            {
                "model_type": family.model_type,
                "attention": family.attention,
                "components": family.components,
                "traits": list(family.traits),
                "scopes": list(family.scopes),
            }
            for family in search_families(words)
        ],
        "embedded": [
            {
                "name": model.name,
                "description": model.description,
                "installed": model.installed,
                "install": model.install_hint,
            }
            for model in embedded.EMBEDDED.values()
        ],
    }


def _show_families(words: list[str]) -> None:
    from normlens.models.table import search_families

    table = new_table("model type", "attention", "components", "traits", left=4)
    for family in search_families(words):
        traits = ", ".join(family.traits)
        add_row(table, family.model_type, family.attention, family.components, traits)
    print_table(console_for(), "Families", table)


def _show_models() -> None:
    from normlens.models.table import by_components, family_table

    console = console_for()
    table = new_table("model types", "attention", "components", "scopes", left=4)
    for group in by_components(family_table()):
        types = ", ".join(family.model_type for family in group)
        first = group[0]
        add_row(table, types, first.attention, first.components, ", ".join(first.scopes))
    print_table(console, "Families", table)
    console.print("normlens models WORD… shows those with these words in their name or traits.\n")
    table = new_table("name", "what it is", "state", left=3)
    for model in embedded.EMBEDDED.values():
        state = "installed" if model.installed else f"run: {model.install_hint}"
        add_row(table, model.name, model.description, state)
    print_table(console, "Embedded models", table)


# ``normlens demo``: a first look.


def demo_command(
    out: Annotated[Path, option("DIR", "Folder for the results.", "--out", "-o")] = Path(
        "normlens-demo"
    ),
    force: parameters.Force = False,
) -> None:
    """A tour with the embedded models: maps, tables and pictures, without the network."""
    from normlens.papers.demo import run_demo

    run_demo(out, force=force)


# ``normlens serve``: a local page for texts and their maps.


#: What a visitor chooses, or the page shows anyway.
_VISITORS = ("scopes", "layers", "heads", "nonlinearity", "batch_size", "origin")


@with_field_options
def serve_command(
    *,
    model: Annotated[
        list[str] | None,
        option(
            "NAME",
            "Model that may be analysed: hub name, folder or embedded model; repeat it for "
            "more. Default: the embedded models that are installed.",
            "--model",
            "-m",
        ),
    ] = None,
    port: Annotated[
        int, typer.Option(min=0, max=65535, metavar="N", help="0 takes any free port.")
    ] = 8765,
    host: Annotated[
        str, option("ADDRESS", "Address to listen at; 0.0.0.0 is all of them.")
    ] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None, option("NAME", "Another name that browsers may know the server by.")
    ] = None,
    tokens: Annotated[int, option("N", "Longest text, in tokens.")] = 512,
    loading: Annotated[LoadOptions, Fields(without=("revision", "part"))],
    analysis: Annotated[AnalysisOptions, Fields(without=(*_VISITORS, "map_dtype"))],
    example: Annotated[
        bool,
        typer.Option(
            "--example/--no-example", help="Analyse an example at the start, to open the page on."
        ),
    ] = True,
    open_browser: Annotated[bool, typer.Option("--open", help="Open it in a browser.")] = False,
    quiet: parameters.Quiet = False,
) -> None:
    """A local page: type a text, choose a model, see the maps. Ctrl-C stops it."""
    at_least_one(tokens, "tokens")
    check_installed(PAGE_SERVER)

    from normlens.serve.app import is_loopback
    from normlens.serve.jobs import Limits
    from normlens.serve.models import ServedModels, installed_models
    from normlens.serve.server import PageServer

    limits = Limits(tokens=tokens)
    models = ServedModels(model or installed_models(), limits, loading=loading, analysis=analysis)
    page = PageServer(
        models, limits, host=host, port=port, allow_hosts=allow_host or (), example=example
    )
    try:
        with status("reading the models' configurations", quiet):
            page.start()
        print(page.url if quiet else f"{', '.join(models.names)} at {page.url}", flush=True)
        if not quiet:
            print("Ctrl-C stops it.", file=sys.stderr)
        if not is_loopback(host):
            print("warning: there is no password; keep strangers from", host, file=sys.stderr)
        if open_browser:
            # A browser in the terminal would keep the server from answering it.
            threading.Thread(target=webbrowser.open, args=(page.url,), daemon=True).start()
        page.run()
    finally:
        if not page.close():
            _leave()


def _leave() -> None:
    """End without waiting for a layer or a download in work.

    A thread inside torch does not survive the interpreter's own end in good order.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
