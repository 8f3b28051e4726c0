"""``normlens estimate``: the cost of an analysis before it runs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normlens.checkpoints.embedded import DEFAULT
from normlens.cli.fields import Fields, with_field_options
from normlens.cli.options import JsonOption, ModelOption
from normlens.cli.printing import add_row, console_for, new_table
from normlens.model_names import shown_name
from normlens.options import AnalysisOptions, LoadOptions, at_least_one

if TYPE_CHECKING:
    import torch

    from normlens.estimate import Analysis, Estimate, ModelSizes, Stage
    from normlens.lens import Lens


@with_field_options
def estimate_command(
    *,
    tokens: Annotated[
        int,
        typer.Option(
            "--tokens", "-n", metavar="N", help="Length of the text; of a source, with its target."
        ),
    ],
    target_tokens: Annotated[
        int | None,
        typer.Option(metavar="M", help="Encoder–decoders: length of what the decoder reads."),
    ] = None,
    model: ModelOption = None,
    asked: Annotated[
        AnalysisOptions, Fields(without=("seed", "batch_size", "map_dtype", "origin"))
    ],
    batch_size: Annotated[int, typer.Option(metavar="N", help="Texts at a time.")] = 1,
    loading: Annotated[LoadOptions, Fields(without=("part", "device_map"))],
    as_json: JsonOption = False,
) -> None:
    """Memory and operations of an analysis, before it runs and without the model's weights.

    The device need not be here: --device cuda assumes a GPU that runs the kernels.
    """
    at_least_one(tokens, "tokens")
    if target_tokens is not None:
        at_least_one(target_tokens, "target_tokens")
    at_least_one(batch_size, "batch_size")

    from normlens import estimate as cost
    from normlens.checkpoints.devices import device_anywhere, pick_dtype
    from normlens.fitting import dtype_to_load
    from normlens.loading import load_config

    place = device_anywhere(loading.device)
    asked_dtype = pick_dtype(loading.dtype)
    config = load_config(
        model, revision=loading.revision, trust_remote_code=loading.trust_remote_code
    )
    stored = dtype_to_load(asked_dtype, config, place, model or DEFAULT)
    lens = cost.skeleton(config, name=shown_name(model or DEFAULT))
    cost.check_lengths(lens, tokens, target_tokens)
    limit = asked.settings.memory_limit
    assert limit is not None
    analysis = cost.Analysis(
        tokens=tokens,
        target_tokens=target_tokens,
        **cost.layers_and_scopes(lens, asked),
        batch=batch_size,
        heads=asked.heads,
        rule=asked.nonlinearity,
        samples=asked.samples,
        memory_limit=limit,
        device=str(place),
        precision=asked.precision,
    )
    kind = _checkpoint_dtype(config) if isinstance(stored, str) else stored
    sizes = cost.sizes_of(lens, kind)
    if asked.memory_limit is not None:
        cost.check_memory_limit(lens, sizes, analysis)
    result = cost.estimate(sizes, analysis)
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
    from normlens.decomposition.plan import KernelPlan, Plan

    plan = result.plan
    tile = {"sources": plan.sources, "targets": plan.targets} if isinstance(plan, Plan) else None
    return {
        "device": analysis.device,
        "operations": {**result.operations, "total": result.total_operations},
        "memory": {**result.memory, "total": result.peak_memory},
        "method": None if plan is None else plan.method,
        "kernels": isinstance(plan, KernelPlan),
        "tile": tile,
        "tiles_per_layer": result.tiles,
        "published_way": result.published,
        **_stages_as_json(result),
    }


def _stages_as_json(result: Estimate) -> dict[str, Any]:
    """The plan of each stage, where there are several."""
    from normlens.decomposition.plan import KernelPlan

    if len(result.stages) < 2:
        return {}
    stages = [
        {
            "stage": stage.name,
            "method": stage.plan.method,
            "kernels": isinstance(stage.plan, KernelPlan),
            "tiles_per_layer": stage.tiles,
        }
        for stage in result.stages
    ]
    return {"stages": stages}


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


def _described(stage: Stage, analysis: Analysis) -> str:
    """The way through the feed-forward stage, in words."""
    from normlens.decomposition.plan import KernelPlan

    plan = stage.plan
    if not isinstance(plan, KernelPlan):
        return (
            f"{plan.method}, {stage.tiles} of at most {plan.targets} targets "
            f"× {plan.sources} sources per layer and text"
        )
    return f"GPU kernels, {plan.method}, in {analysis.kernel_precision.name}"


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
