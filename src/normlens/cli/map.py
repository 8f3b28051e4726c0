"""``normlens map`` and ``normlens view``: attribution maps of a text."""

from __future__ import annotations

import tempfile
import webbrowser
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from normlens.cli import common
from normlens.cli.common import print_table, say
from normlens.cli.parameters import Fields
from normlens.cli.tools import show_estimate
from normlens.errors import require, valid_choice
from normlens.options import LAYER, AnalysisOptions, LoadOptions, cost_in_words
from normlens.results.words import by_stack
from normlens.scopes import consecutive, holds, layers_in_words

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from normlens.results.maps import Maps


# Maps in words: what ``normlens map`` prints without --out.


PRINTED_TOKENS = 16  # a map with more tokens is too wide for a table
PRINTED_PAIRS = 3


def show_maps(maps: Maps) -> None:
    """Print what the maps are of, and what they say in short."""
    about, stacks = maps.provenance, by_stack(maps)
    layers = "" if maps.stack else f": {layers_in_words(maps.layers)} of {about['components']}"
    say(f"{about['model']} ({about['model_type']}){layers}, {about['dtype']} on {about['device']}")
    if others := _source_alone(maps):
        say(f"source, {len(others)} tokens: {' '.join(others)}")
    for one in stacks:
        tokens = f"{len(one.tokens)} tokens: {' '.join(one.tokens)}"
        if one.stack:
            layers = f"{layers_in_words(one.layers)} of {one.provenance['components']}"
            tokens = f"{one.stack}: {layers}; {_sequence(one)}, {tokens}"
        say(tokens)
    if not maps.stack and maps.source_axis is not None:
        say(f"{len(maps.sources)} sources: {' '.join(maps.source_tokens)}")
    say(completeness(maps))
    if maps.origin_in_words:
        say(f"{maps.origin_in_words}, through all layers; what no token owns is left out")
    if "outside_scopes" in about:
        say(f"outside every scope: {about['outside_scopes']}")
    if any(one.heads for one in stacks):
        say("head-level maps: keep them with --out maps.safetensors (or .csv, .json)")
    if maps.routing is not None:
        say(f"{maps.routing!r}; in Python: maps.routing.to_pandas()")
    for one in stacks:
        if len(one.scopes) == 1:
            _show_scope(one)
        else:
            _show_similarity(one)
            _show_amplification(one)


def sizes_in_words(maps: Maps) -> str:
    """How many tokens, which layers and how many scopes; of an encoder–decoder in each stack."""
    others = _source_alone(maps)
    words = [f"source of {len(others)} tokens"] if others else []
    for one in by_stack(maps):
        tokens, layers = f"{len(one.tokens)} tokens", layers_in_words(one.layers)
        if one.stack:
            tokens, layers = f"{_sequence(one)} of {tokens}", f"{one.stack} {layers}"
        words.append(f"{tokens}, {layers}, {len(one.scopes)} scopes")
    return "; ".join(words)


def _source_alone(maps: Maps) -> list[str]:
    """The source's tokens where only the decoder's columns have them."""
    if not maps.stack or maps.encoder is not None:
        return []
    tokens = zip(maps.source_tokens, maps.source_sequences, strict=False)
    return [token for token, sequence in tokens if sequence == "encoder"]


def _sequence(maps: Maps) -> str:
    """What a stack reads: the source, or the target, and who wrote it."""
    if maps.source_axis is None:
        return "source"
    return f"target ({maps.provenance['target']})" if "target" in maps.provenance else "target"


def completeness(maps: Maps) -> str:
    """How exactly parts and biases make the model's own vectors."""
    if not any(scope.endswith("-N") for scope in maps.scopes):
        return "completeness: not measured, because attention weights have no parts"
    return completeness_words(maps, maps.provenance, "bias against the model's own vectors")


def completeness_words(result: Any, about: dict[str, Any], against: str) -> str:
    """How exactly the parts of a result and its biases make what the model itself says."""
    tolerance, compared = about.get("tolerance"), about.get("compared_with_float32")
    return (
        f"completeness: {result.completeness:.1e}{cost_in_words(str(about.get('dtype')))} "
        f"(worst relative error of parts + {against}"
        f"{'' if tolerance is None else f'; tolerance {tolerance:.0e}'}"
        f"{f'; {compared}' if compared else ''})"
    )


def _titled(maps: Maps, title: str) -> str:
    """A title that begins with the stack, if there are two."""
    return f"{maps.stack.capitalize()}: {title}" if maps.stack else title[0].upper() + title[1:]


def _show_similarity(maps: Maps) -> None:
    steps = consecutive(maps.scopes)
    if not steps:
        return
    from_weights = {"ATTN-W": "ATTN-W → ATTN-N", "CROSS-W": "CROSS-W → CROSS-N"}
    names = [from_weights.get(step.before, f"→ {step.component}") for step in steps]
    columns = [maps.similarity(step.before, step.after) for step in steps]
    rows = (
        [str(layer), *("–" if rho != rho else f"{rho:.2f}" for rho in row)]
        for layer, *row in zip(maps.layers, *columns, strict=True)
    )
    title = "similarity of each scope to the one before (Spearman's ρ)"
    print_table(_titled(maps, title), ["layer", *names], rows)


def _show_amplification(maps: Maps) -> None:
    for before, after in maps.feed_forward_pairs():
        amplified = maps.choose(maps.layers_of(before, after), [before, after])
        title = f"pairs that the feed-forward block amplifies most ({before} → {after})"
        values = amplified.amplification(before, after)
        _show_pairs(amplified, values, title, "FF-amp", PRINTED_PAIRS, "+.3f")


def _show_scope(maps: Maps) -> None:
    """The one chosen scope: its map where it fits, else its largest pairs."""
    scope = maps.scopes[0]
    own, other = holds(scope)
    if len(set(maps.source_sequences)) > 1 and maps.stack and not (own and other):
        maps = maps.sources_of("decoder" if own else "encoder")  # it has no parts of the others
    if max(len(maps.targets), len(maps.sources)) > PRINTED_TOKENS:
        title, chosen = f"largest values of {scope} between two tokens", maps.choose(scopes=scope)
        _show_pairs(chosen, maps[scope], title, "value", 2 * PRINTED_PAIRS, ".3g")
        return
    whose = dict.fromkeys(maps.source_sequences) if maps.stack else {}
    sources = f": {', then '.join(f'the {name}' for name in whose)}" if whose else ""
    for layer in maps.layers_of(scope):
        title = f"{scope}, layer {layer} (rows are targets, columns sources{sources})"
        cells = (
            [target, *(f"{value:.3g}" for value in row)]
            for target, row in zip(maps.tokens, maps.at(scope, layer), strict=True)
        )
        print_table(_titled(maps, title), ["", *maps.source_tokens], cells)


def _show_pairs(
    maps: Maps, values: NDArray[Any], title: str, what: str, count: int, form: str
) -> None:
    """A row per layer with the pairs of the largest values, (layer, i, j)."""
    from normlens.measures.maps import strongest_pairs

    sources = maps.source_tokens
    if maps.stack and maps.source_sequences:
        labels = zip(sources, maps.source_sequences, strict=True)
        sources = [f"{token} ({sequence})" for token, sequence in labels]
    rows = []
    for layer, in_layer, allowed in zip(maps.layers, values, maps.allowed, strict=True):
        pairs, _ = strongest_pairs(in_layer, allowed, count, maps.is_same_token)
        words = [f"{sources[p.source]} → {maps.tokens[p.target]} {p.value:{form}}" for p in pairs]
        rows.append([str(layer), "   ".join(words) or "–"])
    print_table(_titled(maps, title), ["layer", f"source → target, {what}"], rows, (0, 1))


# ``normlens map``: attribution maps of a text.


@dataclass(frozen=True)
class Drawing:
    r"""What pictures of maps may be told.

    Options:
        colour SCALE: In pictures: clipped (a square root that outliers and i = j do not stretch;
            default), sqrt or linear.
        heads_of SCOPE: In pictures: the single heads of ATTN-N or ATTN-W; adds --heads.
    """

    colour: str | None = None
    heads_of: str | None = None


def map_command(
    sentence: str | None = None,
    *,
    inputs: common.Inputs,
    model: str | None = None,
    analysis: AnalysisOptions,
    words: bool = False,
    no_special_tokens: bool = False,
    loading: LoadOptions,
    truncate: bool = False,
    output: common.Output,
    drawing: Annotated[dict[str, Any], Fields(of=(Drawing,))],
    estimate: str | None = None,
) -> None:
    r"""Attribution maps of a text: written to a file, or summed up here. Without --out it prints
    how similar each scope is to the one before and which pairs the feed-forward block amplifies
    most; with one --scope, the map itself. An encoder–decoder takes a source and --target-text, a
    model that sees an --image.

    In the list: Attribution maps of a text: written to a file, or summed up here.

    Example: normlens map "She teaches soap opera history." --layers 0,2-4 --out maps.safetensors

    Often: model scopes layers origin words file lines out as_json device

    Options:
        sentence TEXT: The text to analyse; - reads standard input.
        no_special_tokens: Leave out \[CLS], \[SEP], <s>, …
        estimate N: Only say what maps of a text of N tokens take, in memory and operations, without
            the model's weights; N,M are those of a source and its target. The device need not be
            here: --device cuda assumes a GPU that runs the kernels.
    """
    if estimate is not None:
        require(sentence is None, "--estimate takes a number of tokens instead of a text")
        show_estimate(estimate, model, analysis, loading, output.as_json)
        return
    from normlens.figures import COLOUR_SCALES

    if "colour" in drawing:
        valid_choice(drawing["colour"], tuple(COLOUR_SCALES), "--colour")
    output.check(model, inputs, drawing, like="maps.png")
    target, each_input = inputs.target_text, inputs.read(sentence)
    require(
        not inputs.lines or target is None, "--lines is for texts alone; leave --target-text out"
    )
    if "heads_of" in drawing:
        analysis = replace(analysis, heads=True)
    lens = common.load_lens(model, loading)
    of_one = {"image": inputs.image, "pair": inputs.pair}
    common.check_stacks(lens, {"target-text": target}, of_one)
    # Maps that stay as they are go to their file layer by layer.
    changed = words or no_special_tokens or analysis.origin != LAYER
    streams = not changed and (output.file() or Path()).suffix.lower() == ".safetensors"

    for given in each_input:
        line, _ = given
        maps = output.compute(
            "computing maps",
            given,
            lens.maps,
            target=target,
            truncate=truncate,
            out=output.file(line) if streams else None,
            overwrite=output.force,
            **asdict(analysis),
        )
        maps = maps.words() if words else maps
        maps = maps.without_special_tokens() if no_special_tokens else maps
        in_words = f"{sizes_in_words(maps)}; {completeness(maps)}"
        output.deliver(maps, line, show_maps, words=in_words, written=streams, **drawing)


# ``normlens view``: maps files in the browser.


def view_command(
    files: list[Path],
    *,
    out: Path | None = None,
    title: str | None = None,
    note: list[str] | None = None,
    no_browser: bool = False,
    force: bool = False,
) -> None:
    """Saved results as one HTML page, which works from disk without network: maps, explanations,
    cosines, citations, rankings. Several files of maps can be compared: two texts, or two models.
    Results of several kinds, or with notes, stand below each other, as a hand-out.

    In the list: Saved results as an interactive page, in the browser or in one HTML file.

    Example: normlens view why.safetensors maps.safetensors --title "Agreement" --note "Why are?"
    --note "And the layers" --out lesson.html

    Options:
        files FILE…: Files of results (.safetensors), one or more.
        out FILE (--out, -o): Write this .html and open no browser.
        title TEXT: A heading of your own.
        note TEXT: A text above a result; repeat it for the next one.
        no_browser: Write the file and say where it is.
    """
    from normlens.results import store
    from normlens.results.maps import Maps
    from normlens.viewer.notebook import maps_notebook, write_page
    from normlens.viewer.pages import LARGEST, handout

    notes = note or []
    require(len(notes) <= len(files), "there are more notes than files; give one --note for each")
    if out is not None:
        named = out.suffix.lower() in (".html", ".htm")
        require(named, f"{str(out)!r} is not the name of an HTML file; end it in .html")
        store.check_output(out, overwrite=force)
    for file in files:
        page = file.suffix.lower() in (".html", ".htm")
        require(not page, f"{str(file)!r} is a page already; open it in a browser")
    results = [store.open(file) for file in files]
    path = out or Path(tempfile.mkdtemp(prefix="normlens-")) / f"{files[0].stem}.html"
    views = [result._notebook({}) for result in results]
    maps = [result for result in results if isinstance(result, Maps)]
    if title is not None or notes or len(maps) < len(results) > 1:
        document = handout([view.page(LARGEST, "") for view in views], title or "", notes)
        write_page(path, document, force)
    else:
        view = maps_notebook(maps, {}) if maps else views[0]
        view.write(path, overwrite=force)
    print(f"wrote {path} ({path.stat().st_size / 1e6:.1f} MB)")
    if out is None and not no_browser:
        webbrowser.open(path.resolve().as_uri())
