"""``normlens doctor``, ``help``, ``estimate``, ``models``, ``demo`` and ``serve``."""

from __future__ import annotations

import json
import os
import sys
import threading
import webbrowser
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markdown import Markdown

from normlens.cli.common import console_for, print_table, say, status
from normlens.cli.parameters import Fields
from normlens.errors import PAGE_SERVER, InputError, check_installed, valid_choice
from normlens.loading import embedded
from normlens.loading.embedded import DEFAULT
from normlens.loading.hub import shown_name
from normlens.options import AnalysisOptions, LoadOptions, at_least_one

if TYPE_CHECKING:
    from importlib.abc import Traversable

    import torch

    from normlens.plan.estimate import Estimate


# ``normlens doctor``: the installation, and a check of its numbers.


def doctor_command() -> None:
    """Versions, devices, models, and a check of the numbers; exit status 1 if the check fails.

    Example: normlens doctor
    """
    from normlens.loading import doctor

    for section, facts in doctor.installation().items():
        print_table(section.capitalize(), ("", ""), facts.items(), left=(0, 1))
    checks = doctor.self_check()
    title = "Self-check: tiny models against a materialised computation in float64"
    rows = (
        [
            *(check.model_type, f"{check.completeness:.1e}", f"{check.difference:.1e}"),
            "ok" if check.passed else "FAILED",
        ]
        for check in checks
    )
    print_table(title, ("model", "completeness", "difference", "result"), rows)
    if not all(check.passed for check in checks):
        print(
            "error: the self-check failed: maps on this machine cannot be trusted; reinstall "
            "normlens and torch, and report this output if it stays",
            file=sys.stderr,
        )
        raise typer.Exit(1)


# ``normlens help``: pages that are installed with the package, on each kind of error and on what
# errors refer to.
#
# A page about errors lies in ``errors/``, named like its class. The others are pages of the site
# that pyproject.toml puts into the wheel; in a checkout they are read where they are written.


_CHECKOUT = Path(__file__).resolve().parents[3] / "docs"
#: Pages of the site that a wheel holds, too; pyproject.toml names the same.
SITE_PAGES = ("adapters", "corpus", "glossary", "limits", "loading")


def topics() -> dict[str, str]:
    """Every page's name with its first line."""
    pages = {name: page for name in SITE_PAGES if (page := _site_page(name)) is not None}
    listed = {**pages, **_error_pages()}
    return {name: _title(page.read_text(encoding="utf-8")) for name, page in listed.items()}


def page(topic: str) -> str:
    """The Markdown of a page; capitals do not matter."""
    for name, place in _error_pages().items():
        if name.lower() == topic.lower():
            return place.read_text(encoding="utf-8")
    wanted = topic.lower()
    place_of_page = _site_page(wanted) if wanted in SITE_PAGES else None
    if place_of_page is None:
        raise InputError(f"there is no page about {topic!r}; choose one of: {', '.join(topics())}")
    return place_of_page.read_text(encoding="utf-8")


def _error_pages() -> dict[str, Traversable]:
    folder = resources.files("normlens") / "help" / "errors"
    pages = (place for place in folder.iterdir() if place.name.endswith(".md"))
    return {place.name.removesuffix(".md"): place for place in sorted(pages, key=lambda p: p.name)}


def _site_page(name: str) -> Traversable | None:
    installed = resources.files("normlens") / "help" / f"{name}.md"
    if installed.is_file():
        return installed
    written = _CHECKOUT / f"{name}.md"
    return written if written.is_file() else None


def _title(text: str) -> str:
    """A page's title; of a page about errors, what the error says."""
    lines = [line for line in text.splitlines() if line.strip()]
    heading = next(line for line in lines if line.startswith("# ")).removeprefix("# ")
    following = lines[lines.index(f"# {heading}") + 1]
    return following if heading.endswith("Error") else heading


def help_command(topic: str | None = None) -> None:
    """Pages that need no network: errors with cause and cure, and what errors refer to.

    In the list: Pages that need no network: errors with cause and cure, adapters, …

    Example: normlens help CompletenessError

    Options:
        topic [TOPIC]: A page, or the name of an error's class.
    """
    if topic is None:
        title = "normlens help TOPIC prints a page"
        print_table(title, ("topic", "about"), topics().items(), left=(0, 1))
        return
    console, text = console_for(), page(topic)
    console.print(Markdown(text) if console.is_terminal else text)


# ``normlens estimate``: the cost of an analysis before it runs.


def estimate_command(
    *,
    tokens: int,
    target_tokens: int | None = None,
    model: str | None = None,
    asked: Annotated[
        AnalysisOptions, Fields(without=("seed", "batch_size", "map_dtype", "origin"))
    ],
    batch_size: int = 1,
    loading: Annotated[LoadOptions, Fields(without=("part", "device_map"))],
    as_json: bool = False,
) -> None:
    """Memory and operations of an analysis, before it runs and without the model's weights.

    The device need not be here: --device cuda assumes a GPU that runs the kernels.

    Example: normlens estimate --model minilm --tokens 512

    Options:
        tokens N (--tokens, -n): Length of the text; of a source, with its target.
        target_tokens M: Encoder–decoders: length of what the decoder reads.
        batch_size N: Texts at a time.
    """
    at_least_one(tokens, "tokens")
    if target_tokens is not None:
        at_least_one(target_tokens, "target_tokens")
    at_least_one(batch_size, "batch_size")

    import torch

    from normlens.loading.load import device_anywhere, dtype_to_load, load_config, pick_dtype
    from normlens.plan.estimate import Estimate, skeleton

    place, asked_dtype = device_anywhere(loading.device), pick_dtype(loading.dtype)
    config = load_config(
        model, revision=loading.revision, trust_remote_code=loading.trust_remote_code
    )
    dtype: Any = dtype_to_load(asked_dtype, config, place, model or DEFAULT)
    if isinstance(dtype, str):  # the one that the checkpoint names, if it does
        dtype = getattr(config, "dtype", None) or torch.float32
    lens = skeleton(config, shown_name(model or DEFAULT), dtype)
    result = Estimate(lens, tokens, asked, target_tokens, batch=batch_size, device=str(place))
    result.check()
    if as_json:
        print(json.dumps(_estimate_as_json(result), indent=2))
    else:
        _show_estimate(result)
        _show_device(place, result)


def _estimate_as_json(result: Estimate) -> dict[str, Any]:
    stages = [
        {
            "stage": stage.name,
            "method": stage.plan.method,
            "kernels": stage.at.is_fused,
            "tiles_per_layer": stage.tiles,
        }
        for stage in result.stages
    ]
    first = stages[0] if stages else {"method": None, "kernels": False, "tiles_per_layer": 0}
    tile = None
    if stages and not first["kernels"]:
        plan = result.stages[0].plan
        tile = {"sources": plan.sources, "targets": plan.targets}
    return {
        "device": result.device,
        "operations": {**result.operations, "total": result.total_operations},
        "memory": {**result.memory, "total": result.peak_memory},
        "method": first["method"],
        "kernels": first["kernels"],
        "tile": tile,
        "tiles_per_layer": first["tiles_per_layer"],
        "published_way": result.published,
        **({"stages": stages} if len(stages) > 1 else {}),
    }


def _show_estimate(result: Estimate) -> None:
    lens, dtype = result.lens, str(result.lens.dtype).removeprefix("torch.")
    layers = sum(len(stack.request.layers) for stack in result.stacks)
    scopes = {stack.name: f"{len(stack.request.scopes)} scopes" for stack in result.stacks}
    texts, listed = f"{result.tokens} tokens", scopes.get("")
    if result.target_tokens is not None:
        texts = f"({result.tokens} source + {result.target_tokens} target tokens)"
        encoder, decoder = (scopes.get(name, "0 scopes") for name in ("encoder", "decoder"))
        listed = f"{encoder} of the encoder and {decoder} of the decoder"
    limit = _bytes(result.options.settings.memory_limit or 0)
    say(
        f"{lens.name} ({lens.model_type}): {layers} of {lens.n_layers} layers of "
        f"{lens.component_sequence}, {dtype} on {result.device}",
        f"{result.batch} × {texts}, {listed}, memory limit {limit}",
    )
    memory = {**result.memory, "peak": result.peak_memory}
    print_table("", ("memory", ""), ([item, _bytes(size)] for item, size in memory.items()))
    work = {**result.operations, "total": result.total_operations}
    print_table("", ("operations", ""), ([item, _flop(count)] for item, count in work.items()))
    for stage in result.stages:
        plan, name = stage.plan, f" ({stage.name})" if stage.name else ""
        if stage.at.is_fused:
            way = f"GPU kernels, {plan.method}, in {stage.at.precision.name}"
        else:
            way = (
                f"{plan.method}, {stage.tiles} of at most {plan.targets} targets "
                f"× {plan.sources} sources per layer and text"
            )
        say(f"feed-forward stage{name}: {way}")
    say(
        f"the published way holds n×n×H×d numbers per layer: {_bytes(result.published)} "
        f"(here: {_bytes(result.peak_memory - result.weights)} beside the model's weights)"
    )


def _show_device(place: torch.device, result: Estimate) -> None:
    """What the device has room for, if it is here."""
    from normlens.loading.load import is_elsewhere
    from normlens.plan.costs import free_memory

    if is_elsewhere(place):
        assumed = ": a GPU that runs the kernels is assumed" if place.type == "cuda" else ""
        say(f"{place} is not here{assumed}")
        return
    say(
        f"free memory here: {_bytes(free_memory(place))} ({place}); "
        f"automatic batch size: {result.automatic_batch()}"
    )


def _bytes(size: float) -> str:
    value, unit = _scaled(size, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))
    return f"{value:.3g} B" if unit == "B" else f"{value:.1f} {unit}"


def _flop(count: float) -> str:
    value, unit = _scaled(count, 1000, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP"))
    return f"{value:.3g} {unit}"


def _scaled(value: float, base: int, units: tuple[str, ...]) -> tuple[float, str]:
    power = 0
    while value >= base and power < len(units) - 1:
        value, power = value / base, power + 1
    return value, units[power]


# ``normlens models``: families and embedded models.


def models_command(
    words: list[str] | None = None,
    *,
    install: str | None = None,
    as_json: bool = False,
    as_markdown: bool = False,
    quiet: bool = False,
) -> None:
    """Supported model families, and embedded models that need no download from the hub.

    Example: normlens models grouped windows

    Options:
        words [WORD]...: Show the families with all of these words in their name or traits.
        install NAME: Install an embedded model with pip.
        as_markdown (--markdown): Print the families as a Markdown table.
    """
    if install is not None:
        _install(install, quiet)
        return

    from normlens.models import table

    if as_markdown:
        print(table.markdown_table(words or []), end="")
    elif as_json:
        print(json.dumps(_models_as_json(words or []), indent=2, ensure_ascii=False))
    elif words:
        columns = ("model type", "attention", "components", "traits")
        rows = (
            [family.model_type, family.attention, family.components, ", ".join(family.traits)]
            for family in table.search_families(words)
        )
        print_table("Families", columns, rows, left=range(4))
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

    told = ("model_type", "attention", "components", "traits", "scopes")
    return {
        "families": [
            {name: getattr(each, name) for name in told} for each in search_families(words)
        ],
        "embedded": [
            {
                **{name: getattr(model, name) for name in ("name", "description", "installed")},
                "install": model.install_hint,
            }
            for model in embedded.EMBEDDED.values()
        ],
    }


def _show_models() -> None:
    from normlens.models.table import by_components, family_table

    families = (
        [
            ", ".join(family.model_type for family in group),
            *(group[0].attention, group[0].components, ", ".join(group[0].scopes)),
        ]
        for group in by_components(family_table())
    )
    columns = ("model types", "attention", "components", "scopes")
    print_table("Families", columns, families, left=range(4))
    say("normlens models WORD… shows those with these words in their name or traits.\n")
    models = (
        [
            *(model.name, model.description),
            "installed" if model.installed else f"run: {model.install_hint}",
        ]
        for model in embedded.EMBEDDED.values()
    )
    print_table("Embedded models", ("name", "what it is", "state"), models, left=range(3))


# ``normlens demo``: a first look.


def demo_command(*, out: Path = Path("normlens-demo"), force: bool = False) -> None:
    """A tour with the embedded models: maps, tables and pictures, without the network.

    Example: normlens demo --out my-demo

    Options:
        out DIR (--out, -o): Folder for the results.
    """
    from normlens.papers.demo import run_demo

    run_demo(out, force=force)


# ``normlens serve``: a local page for texts and their maps.


#: What a visitor chooses, or the page shows anyway.
_VISITORS = ("scopes", "layers", "heads", "nonlinearity", "batch_size", "origin")


def serve_command(
    *,
    model: list[str] | None = None,
    port: int = typer.Option(8765, min=0, max=65535, metavar="N", help="0 takes any free port."),
    host: str = "127.0.0.1",
    allow_host: list[str] | None = None,
    tokens: int = 512,
    loading: Annotated[LoadOptions, Fields(without=("revision", "part"))],
    analysis: Annotated[AnalysisOptions, Fields(without=(*_VISITORS, "map_dtype"))],
    example: bool = True,
    open_browser: bool = False,
    quiet: bool = False,
) -> None:
    """A local page: type a text, choose a model, see the maps. Ctrl-C stops it.

    Example: normlens serve --model minilm --open

    Options:
        model NAME (--model, -m): Model that may be analysed: hub name, folder or embedded model;
            repeat it for more. Default: the embedded models that are installed.
        host ADDRESS: Address to listen at; 0.0.0.0 is all of them.
        allow_host NAME: Another name that browsers may know the server by.
        tokens N: Longest text, in tokens.
        example (--example/--no-example): Analyse an example at the start, to open the page on.
        open_browser (--open): Open it in a browser.
    """
    at_least_one(tokens, "tokens")
    check_installed(PAGE_SERVER)

    from normlens.serve.analyses import Limits, ServedModels, installed_models
    from normlens.serve.app import is_loopback
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
