"""Files that results are saved to, opened by the code of today, and what the commands print."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import normlens
from golden.families import inputs
from golden.models import LONG, SHORT, build, config_of, kind_of, noise, tasks_of, tokenizer
from golden.results import Values, attempt, in_words, under, values_of
from golden.shell import folder_of_examples, run_command

Results = dict[str, Callable[[], Any]]


def saved_files(settings: dict[str, dict[str, Any]], kept: Path, opened: Path) -> Values:
    """Save results to the folder `kept`, and read them there and those in `opened`."""
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for name, result in _results(settings).items():
        result().save(kept / f"{name}.safetensors")
    bert = _lens("bert", settings)
    bert.maps(LONG, out=kept / "streamed.safetensors", overwrite=True)
    with folder_of_examples(settings):
        normlens.run("gpt2", "data.txt", kept / "run", limit=3, device="cpu")
    values: Values = {}
    for folder, label in ((kept, "saved"), (opened, "opened")):
        for path in sorted(folder.glob("*.safetensors")):
            values |= attempt(f"{label}/{path.name}", normlens.open, path)
        values |= attempt(
            f"{label}/mapped", normlens.open, folder / "maps.safetensors", mapped=True
        )
        values |= _run_folder(folder / "run", f"{label}/run")
    return values


def _run_folder(folder: Path, label: str) -> Values:
    try:
        run = normlens.Run.open(folder)
        tables = {name: run.table(name) for name in run.tables}
    except Exception as error:
        return {label: in_words(error)}
    return {k: v for n, t in tables.items() for k, v in under(f"{label}/{n}", values_of(t)).items()}


def _lens(family: str, settings: dict[str, dict[str, Any]]) -> normlens.Lens:
    config = config_of(family, settings[family])
    reads_text = kind_of(config) in ("text", "pair")
    model = build(config, tasks_of(config)[0])
    return normlens.load(model, tokenizer() if reads_text else False, name=family)


def _results(settings: dict[str, dict[str, Any]]) -> Results:
    """One result of each kind that can be saved, by the name of its file."""
    families = ("bert", "gpt2", "bart", "vit", "mixtral")
    bert, gpt2, bart, vit, mixtral = (_lens(family, settings) for family in families)
    pair, _ = inputs("pair", config_of("bart", settings["bart"]))
    picture = noise(3, 12, 12)
    return {
        "maps": lambda: bert.maps(LONG, heads=True, statistics=True),
        "two-texts": lambda: bert.maps((LONG, SHORT)),
        "words": lambda: bert.maps(LONG).words(),
        "shapley": lambda: bert.maps(SHORT, nonlinearity="shapley", samples=3),
        "half": lambda: bert.maps(SHORT, map_dtype="float16"),
        "input": lambda: gpt2.maps(LONG, origin="input"),
        "two-stacks": lambda: bart.maps(**pair),
        "two-stacks-input": lambda: bart.maps(**pair, origin="input"),
        "picture": lambda: vit.maps(picture),
        "experts": lambda: mixtral.maps(SHORT),
        "rollout": lambda: normlens.rollouts.alti(gpt2, LONG),
        "explanation": lambda: gpt2.explain(LONG, contrast="red", heads=True, scopes="ATTN"),
        "explanations": lambda: gpt2.explain(SHORT, position="all"),
        "direction": lambda: gpt2.explain(LONG, direction=noise(16), position=2, layer=0),
        "picture-explained": lambda: vit.explain(picture),
        "pair-explained": lambda: bart.explain(**pair, contrast=1),
        "pairs-explained": lambda: bart.explain(**pair, token="all"),
        "cosine": lambda: bert.cosine(LONG, SHORT),
    }


#: What is typed behind ``normlens`` and succeeds; the file that it writes is read, if it is text.
COMMANDS = """
map 'the cats sat on a mat' -m bert
map 'the cats sat on a mat' -m bert --scope FF --layers 1
map 'the cats sat on a mat' -m bert --words --no-special-tokens --json
map 'a dog ran' -m bert --origin input --scope LN2
map 'a dog ran' -m bart --target-text 'the cat sat'
map 'a dog ran' -m bert --pair 'a cat sat' --scope FF --out maps.csv
map 'a dog ran' -m bert --scope FF --heads --out maps.json
map 'a dog ran' -m bart --target-text 'the cat sat' --scope CROSS-N --out pair.csv
map 'a dog ran' -m bert --scope FF --out maps.png
map 'a dog ran' -m bert --scope FF --out maps.svg
map 'a dog ran' -m bert --scope FF --out maps.html
map --file data.txt --lines -m bert --scope FF --json
explain 'the cat [MASK] on a mat' -m bert --contrast ran
explain 'the cat sat on' -m gpt2 --json
explain 'the cat sat on' -m gpt2 --position all
explain 'the cat sat on' -m gpt2 --out why.csv
explain 'the cat sat on' -m gpt2 --out why.json
explain 'the cat sat on' -m gpt2 --out why.pdf
explain 'the cat sat on' -m classifier --words
explain 'a dog ran' -m bart --target-text 'the cat sat' --position all
explain 'a dog ran' -m bart --target-text 'the cat sat' --position all --out shares.csv
cosine 'the cat sat' 'a dog ran' -m encoder
cosine 'the cat sat' 'a dog ran' -m encoder --json
cosine 'the cat sat' 'a dog ran' -m encoder --out pair.csv
cosine 'the cat sat' 'a dog ran' -m encoder --out pair.json
view maps.safetensors --out page.html
map --model bert --estimate 12 --device cpu
query run
query run 'SELECT layer, avg(ratio) AS ratio FROM mixing GROUP BY layer ORDER BY layer'
query run 'SELECT layer, avg(ratio) AS ratio FROM mixing GROUP BY layer ORDER BY layer' --csv
query run 'SELECT layer, avg(ratio) AS ratio FROM mixing GROUP BY layer ORDER BY layer' --json
query run 'SELECT * FROM sequences ORDER BY index' --out answer.csv
check run
"""
#: The first bytes of files that are no text.
_MARKS = {b"\x89PNG": "PNG", b"%PDF": "PDF", b"<?xml": "SVG", b"<!doc": "HTML", b"<html": "HTML"}


def command_output(settings: dict[str, dict[str, Any]]) -> Values:
    """What the commands print, and the tables that they write."""
    values: Values = {}
    with folder_of_examples(settings):
        for line in COMMANDS.strip().splitlines():
            words = shlex.split(line)
            status, out, err = run_command(words)
            printed = re.sub(r"free memory here: [^;]*; ", "", out)
            values[line] = f"exit {status}\n{printed}{err}"
            for flag in ("--out",):
                if flag in words:
                    path = Path(words[words.index(flag) + 1])
                    values[f"{line}: {path}"] = _content(path)
                    path.unlink(missing_ok=True)
    return values


def _content(path: Path) -> str:
    if not path.exists():
        return "nothing was written"
    data = path.read_bytes()
    kinds = [kind for mark, kind in _MARKS.items() if data[:5].lower().startswith(mark.lower())]
    return f"a {kinds[0]} file" if kinds else data.decode()
