"""``normlens estimate``: the cost of an analysis before it runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normlens.checkpoints.embedded import DEFAULT
from normlens.cli.fields import Fields, with_field_options
from normlens.cli.options import JsonOption, ModelOption
from normlens.cli.printing import add_row, console_for, new_table
from normlens.errors import InputError
from normlens.options import AnalysisOptions, LoadOptions, at_least_one

if TYPE_CHECKING:
    import torch

    from normlens.estimate import Analysis, Estimate, ModelSizes
    from normlens.lens import Lens


@with_field_options
def estimate_command(
    *,
    tokens: Annotated[int, typer.Option("--tokens", "-n", metavar="N", help="Length of the text.")],
    model: ModelOption = None,
    asked: Annotated[AnalysisOptions, Fields(without=("seed", "batch_size", "origin"))],
    batch_size: Annotated[int, typer.Option(metavar="N", help="Texts at a time.")] = 1,
    loading: LoadOptions,
    as_json: JsonOption = False,
) -> None:
    """Memory and operations of an analysis, before it runs and without the model's weights.

    The device need not be here: --device cuda assumes a GPU that runs the kernels.
    """
    at_least_one(tokens, "tokens")
    at_least_one(batch_size, "batch_size")

    from normlens import estimate as cost
    from normlens.checkpoints.devices import device_anywhere, pick_dtype
    from normlens.decomposition.least import check_limit
    from normlens.fitting import dtype_to_load
    from normlens.loading import load_config

    place = device_anywhere(loading.device)
    asked_dtype = pick_dtype(loading.dtype)
    config = load_config(
        model, revision=loading.revision, trust_remote_code=loading.trust_remote_code
    )
    stored = dtype_to_load(asked_dtype, config, place, model or DEFAULT)
    lens = cost.skeleton(config, name=model or DEFAULT)
    if lens.max_tokens is not None and tokens > lens.max_tokens:
        raise InputError(f"{lens.name} takes at most {lens.max_tokens} tokens, not {tokens}")
    limit = asked.settings.memory_limit
    assert limit is not None
    analysis = cost.Analysis(
        tokens=tokens,
        layers=tuple(asked.layers_of(lens.n_layers, lens.name)),
        scopes=tuple(asked.scopes_of(lens.scopes)),
        batch=batch_size,
        heads=asked.heads,
        rule=asked.nonlinearity,
        samples=asked.samples,
        memory_limit=limit,
        device=str(place),
        precision=asked.precision,
    )
    kind = _checkpoint_dtype(config) if isinstance(stored, str) else stored
    if asked.memory_limit is not None:
        check_limit(
            limit,
            [lens.layers[index] for index in analysis.layers],
            [tokens],
            analysis.scopes,
            analysis.rule,
            max(4, kind.itemsize),
        )
    sizes = cost.sizes_of(lens, kind)
    result = cost.estimate(sizes, analysis)
    if as_json:
        print(json.dumps(_estimate_as_json(result, analysis), indent=2))
        return
    _show_estimate(lens, analysis, result, str(kind).removeprefix("torch."))
    _show_device(place, sizes, tokens)


def _checkpoint_dtype(config: Any) -> torch.dtype:
    """The dtype that a checkpoint's configuration names; float32 where it names none."""
    import torch

    dtype = getattr(config, "dtype", None)
    return dtype if isinstance(dtype, torch.dtype) else torch.float32


def _estimate_as_json(result: Estimate, analysis: Analysis) -> dict[str, Any]:
    from normlens.decomposition.plan import KernelPlan, Plan

    plan = result.plan
    tile = {"sources": plan.sources, "targets": plan.targets} if isinstance(plan, Plan) else None
    return {
        "device": analysis.device,
        "operations": {**result.operations, "total": result.total_operations},
        "memory": {**result.memory, "total": result.peak_memory},
        "method": None if plan is None else plan.method,
        "kernels": isinstance(plan, KernelPlan),
        "may_gather": isinstance(plan, KernelPlan) and plan.may_gather,
        "tile": tile,
        "tiles_per_layer": result.tiles,
        "published_way": result.published,
    }


def _show_estimate(lens: Lens, analysis: Analysis, result: Estimate, dtype: str) -> None:
    console = console_for()
    console.print(
        f"{lens.name} ({lens.model_type}): {len(analysis.layers)} of {lens.n_layers} layers of "
        f"{lens.component_sequence}, {dtype} on {analysis.device}"
    )
    console.print(
        f"{analysis.batch} × {analysis.tokens} tokens, {len(analysis.scopes)} scopes, "
        f"memory limit {_bytes(analysis.memory_limit or 0)}"
    )
    memory = new_table("memory", "")
    for item, size in {**result.memory, "peak": result.peak_memory}.items():
        add_row(memory, item, _bytes(size))
    console.print(memory)
    work = new_table("operations", "")
    for item, count in {**result.operations, "total": result.total_operations}.items():
        add_row(work, item, _flop(count))
    console.print(work)
    if result.plan is not None:
        console.print(f"feed-forward stage: {_described(result, analysis)}")
    console.print(
        f"the published way holds n×n×H×d numbers per layer: {_bytes(result.published)} "
        f"(here: {_bytes(result.working_memory)} beside the model's weights)"
    )


def _described(result: Estimate, analysis: Analysis) -> str:
    """The way through the feed-forward stage, in words."""
    from normlens.decomposition.plan import KernelPlan

    plan = result.plan
    assert plan is not None
    if not isinstance(plan, KernelPlan):
        return (
            f"{plan.method}, {result.tiles} of at most {plan.targets} targets "
            f"× {plan.sources} sources per layer and text"
        )
    words = f"GPU kernels, {plan.method}, in {analysis.kernel_precision.name}"
    if plan.may_gather:
        words += "; only the active neurons where the text leaves enough neurons silent"
    return words


def _show_device(place: torch.device, sizes: ModelSizes, tokens: int) -> None:
    """What the device has room for, if it is here."""
    from normlens.checkpoints.devices import is_elsewhere
    from normlens.decomposition.memory import free_memory
    from normlens.estimate.whole import automatic_batch

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
