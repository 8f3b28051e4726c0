"""The numbers of every family: maps, explanations, cosines, rollouts, on a CPU and on a GPU."""

from __future__ import annotations

from typing import Any

import torch

import normlens
from golden.models import (
    LONG,
    MASKED,
    SHORT,
    build,
    config_of,
    kind_of,
    noise,
    tasks_of,
    tokenizer,
)
from golden.results import Values, attempt

#: Families of different kinds, for which every rule and option is tried.
KINDS = (
    *("bert", "mobilebert", "deberta-v2", "gpt2", "gpt_neox", "llama", "gemma2", "mixtral"),
    *("gpt_oss", "bart", "t5", "whisper", "vit", "wav2vec2"),
)
#: The embedded models, whose tokenizers and weights are real.
EMBEDDED = ("minilm", "smollm2")
ROLLOUTS = ("rollout-weights", "globenc", "alti", "value-zeroing")
SENTENCE, OTHER = "She teaches soap opera history.", "He reads quietly."
Given = dict[str, Any]


def family_numbers(family: str, settings: dict[str, Any], device: str = "cpu") -> Values:
    """Every number of one tiny model, or the line with which a question is refused."""
    config = config_of(family, settings)
    kind, tasks = kind_of(config), tasks_of(config)
    first = tasks[0] if tasks else None
    lens = _lens(config, first, device)
    long, short = inputs(kind, config)
    values: Values = {"repr": repr(lens)}
    values |= attempt("alone", lens.maps, **long, heads=True)
    values |= attempt("statistics", lens.maps, **short, statistics=True)
    values |= attempt("together", lens.maps, **_together(long, short), batch_size=2)
    values |= attempt("input", lens.maps, **long, origin="input")
    asked = _question(lens, first, long)
    values |= attempt(f"explain {first}", lens.explain, **asked, heads=True, scopes="all")
    for task in tasks[1:]:
        other = _lens(config, task, device)
        values |= attempt(f"explain {task}", other.explain, **_question(other, task, long))
    if kind == "text":
        values |= attempt("cosine", lens.cosine, LONG, SHORT)
    values |= rollouts(lens, kind, long)
    for precision in ("tf32", "bfloat16") if device == "cuda" else ():
        values |= attempt(precision, lens.maps, **long, precision=precision)
    if family in KINDS:
        values |= options(lens, kind, long, short, asked)
        for dtype in (torch.float64, torch.bfloat16):
            other = _lens(config, first, device, dtype)
            values |= attempt(f"in {str(dtype)[6:]}", other.maps, **short)
    return values


def _lens(
    config: Any, task: str | None, device: str, dtype: torch.dtype = torch.float32
) -> normlens.Lens:
    reads_text = kind_of(config) in ("text", "pair")
    model = build(config, task).to(device, dtype)
    return normlens.load(model, tokenizer() if reads_text else False)


def inputs(kind: str, config: Any) -> tuple[Given, Given]:
    """Keywords of `Lens.maps` for two inputs of different lengths."""
    if kind == "text":
        return {"text": LONG}, {"text": SHORT}
    if kind == "picture":
        return {"text": noise(3, 12, 12)}, {"text": noise(3, 8, 21, seed=1)}
    if kind == "sound":
        return {"text": noise(270)}, {"text": noise(170, seed=1)}
    targets = [2, 9, 12, 30, 41, 6], [2, 5, 40]
    if hasattr(config, "num_mel_bins"):
        sounds = [
            noise(config.num_mel_bins, 2 * config.max_source_positions, seed=s) for s in (2, 3)
        ]
        one, other = ({"input_features": sound} for sound in sounds)
    else:
        one, other = {"input_ids": [5, 17, 31, 8, 44, 22, 19]}, {"input_ids": [40, 12, 7, 33]}
    return {**one, "decoder_input_ids": targets[0]}, {**other, "decoder_input_ids": targets[1]}


def _together(long: Given, short: Given) -> Given:
    """Both inputs for one call, which pads the shorter."""
    both = {name: [long[name], short[name]] for name in long}
    if "input_features" in both:
        both["input_features"] = torch.stack(both["input_features"])
    return both


def _question(lens: normlens.Lens, task: str | None, given: Given) -> Given:
    """Why the model says what it says; where it says nothing, what makes a vector of it."""
    if task is None:
        return {**given, "direction": noise(lens.model.config.hidden_size, seed=4), "position": 1}
    if task == "MaskedLM":
        return {"text": MASKED, "contrast": "ran"}
    if task in ("TokenClassification", "CTC", "AudioFrameClassification"):
        return {**given, "position": 1}
    return {**given, "contrast": "red" if task == "CausalLM" else 1}


def rollouts(lens: normlens.Lens, kind: str, given: Given) -> Values:
    """Every method by its name, and the product of a whole layer's maps."""
    last = lens.scopes[-1]
    if kind == "pair":
        return attempt("rollout", lens.maps(**given).rollout, last)
    values: Values = {}
    for name in (*ROLLOUTS, f"rollout-{last}"):
        values |= attempt(name, normlens.rollouts.method(name), lens, given["text"])
    return values


def options(lens: normlens.Lens, kind: str, long: Given, short: Given, asked: Given) -> Values:
    """Every rule for the nonlinearity, and the options that change how a map is computed."""
    values: Values = {}
    for rule in ("ig-bias", "gradient"):
        values |= attempt(rule, lens.maps, **short, nonlinearity=rule)
        values |= attempt(f"input, {rule}", lens.maps, **short, nonlinearity=rule, origin="input")
        values |= attempt(f"explain, {rule}", lens.explain, **asked, nonlinearity=rule)
    values |= attempt("shapley", lens.maps, **short, nonlinearity="shapley", samples=5, seed=1)
    values |= attempt("float16 maps", lens.maps, **short, map_dtype="float16")
    values |= attempt("one layer", lens.maps, **short, layers=-1, scopes=["ATTN", "FF"])
    values |= attempt("little memory", lens.maps, **long, memory_limit="40KB")
    if kind == "pair":
        values |= attempt("explain all", lens.explain, **short, token="all")
    elif lens.causal:
        values |= attempt("explain all", lens.explain, **short, position="all")
    if kind == "text":
        direction = noise(lens.model.config.hidden_size, seed=4)
        values |= attempt("cosines", lens.cosine, [(LONG, SHORT), (SHORT, SHORT)])
        values |= attempt("words", lens.maps(**long).without_special_tokens().words)
        values |= attempt("direction", lens.explain, LONG, direction=direction, position=2, layer=0)
    values |= attempt("prepared", lens.prepare().maps, **long)
    return values


def embedded_numbers(name: str, device: str = "cpu") -> Values:
    """The numbers of an embedded model on sentences, with what is measured of its maps."""
    lens = normlens.load(name, device=device)
    few = {"layers": [0, -1]} if lens.n_layers > 6 else {}
    maps = lens.maps(SENTENCE, heads=True, **few)
    values: Values = {"repr": repr(lens), "shown": repr(maps).partition(", completeness")[0]}
    values |= attempt("alone", lambda: maps)
    values |= attempt("together", lens.maps, [SENTENCE, OTHER], **few)
    values |= attempt("input", lens.maps, OTHER, origin="input", **few)
    values |= attempt("words", maps.without_special_tokens().words)
    values |= attempt("similarity", maps.similarity, "ATTN-N", lens.scopes[-1])
    values |= attempt("amplification", maps.amplification, *maps.feed_forward_pair())
    values |= attempt("top pairs", maps.top_pairs)
    if lens.causal:
        keys = "The keys to the cabinet"
        why = lens.explain(keys, target=" are", contrast=" is", heads=True, scopes="ATTN")
        values |= attempt("explain", lambda: why)
        values |= attempt("explain words", why.words)
        values |= attempt("explain all", lens.explain, keys, position="all", flow=False)
    else:
        values |= attempt("cosine", lens.cosine, SENTENCE, OTHER)
        values |= attempt("cosine words", lens.cosine(SENTENCE, OTHER).words)
        values |= rollouts(lens, "text", {"text": OTHER})
    return values
