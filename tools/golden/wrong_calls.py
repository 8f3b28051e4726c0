"""Wrong calls and the one line that each of them gets, on the command line and in Python."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import normlens
from golden.models import LONG, SHORT, noise
from golden.results import Values, in_words
from golden.shell import folder_of_examples, run_command

#: What is typed behind ``normlens``, in the folder of examples.
COMMANDS = """
nonsense
map
map --nonsense
map a --file data.txt
map ''
map ' '
map a --pair ' ' -m bert
map --file nowhere.txt
map --file .
map --file latin.txt
map --file empty.txt
map a --model nowhere/at-all
map a --model ./nowhere
map a --model no-config
map a --model no-weights
map a --model no-json
map a --model unknown-type
map a --model bert --layers one
map a --model bert --layers 3-1
map a --model bert --layers 9
map a --model bert --scope FFN
map a --model bert --nonlinearity magic
map a --model bert --memory-limit much
map a --model bert --memory-limit 1B
map a --model bert --origin output
map a --model bert --origin input --heads
map a --model bert --origin input --nonlinearity shapley
map a --model bert --origin input --scope ATTN-W
map a --model bert --device nonsense
map a --model bert --device cuda:99
map a --model bert --dtype int8
map a --model bert --revision v2
map a --model bert --part vision_model
map a --model bert --out maps
map a --model bert --out maps.docx
map a --model bert --out no/such/folder/maps.csv
map a --model bert --out here.csv --force
map a --model bert --out table.csv
map a --model bert --out data.txt/maps.csv
map a --model bert --colour sqrt
map a --model bert --colour log --out a.png
map a --model bert --heads-of FF --out a.png
map a --model bert --target-text b
map a --model bert --image nowhere.png
map a --model bert --lines
map --image nowhere.png --model vit
map --image data.txt --model vit
map a --model vit
map --file long.txt -m bert
explain a --model encoder
explain a --model gpt2 --target zebra
explain a --model gpt2 --target 'red mat'
explain a --model gpt2 --contrast zebra
explain a --model gpt2 --position 99
explain a --model gpt2 --position x
explain a --model gpt2 --picture flow
explain a --model gpt2 --picture pie --out a.png
explain a --model bert
explain a --model classifier --target 7
explain a --model bart --position 1
explain a --model bart --position 99 --target-text b
cosine a
cosine a b --model bart
cosine a '' --model bert
cosine a b --model bert --out pair.docx
view nowhere.safetensors
view short.safetensors
view garbage.safetensors
view foreign.safetensors
view newer.safetensors
view misfit.safetensors
view maps.safetensors --out page.txt
view data.txt
models --install nothing
help nothing
map --model bert --estimate 0
map --model nowhere/at-all --estimate 5
map --model bert --estimate 5 --memory-limit much
run
run --model bert --out new
run --model bert --data nowhere.txt --out new
run --model bert --data empty.txt --out new
run --model bert --data data.txt --out run
run --model bert --data data.txt --out new --measures magic
run --model bert --data data.txt --out new --measures ,
run --model bert --data data.txt --out new --measures mixing,mixing
run --model bert --data data.txt --out new --measures nowhere:measure
run --model bert --data data.txt --out new --set mixing
run --model bert --data data.txt --out new --set mixing.nothing=1
run --model bert --data data.txt --out new --mask 2
run --model gpt2 --data data.txt --out new --mask 0.1
run --model bert --data data.txt --out new --limit 0
run --model bert --data data.txt --out new --workers none
run --model bert --data data.txt --out new --engine slurm
run --model bert --data data.txt --out new --address auto
run --model bert --data data.txt --out new --column text
run --model bert --data table.csv --out new --column nothing
run --model encoder --data data.txt --out new --measures explanations
run --model bart --data table.csv --out new --column text --pair-column nothing
run --model vit --data data.txt --out new
run --resume nowhere
run --resume run --seed 3
run --resume run --model gpt2
status nowhere
status bert
check nowhere
query nowhere 'SELECT 1'
query run 'SELECT nothing FROM mixing'
query run 'SELECT * FROM nothing'
query run 'SELEKT 1'
query run ''
query run 'DROP TABLE mixing'
query run "SELECT * FROM read_csv('table.csv')"
query run 'SELECT 1' --out answer.docx
reproduce report nowhere
reproduce report run
reproduce compare run --out new
reproduce compare nowhere elsewhere --out new
reproduce magic --model bert --data data.txt --out new
reproduce ff --model bert --data nowhere.txt --out new
reproduce ff --model bert --data data.txt --out table.csv
evaluate --model classifier --data table.csv --column text --out new --methods magic
evaluate --model classifier --data table.csv --column text --out new --protocols magic
evaluate --model bert --data data.txt --out new
reproduce ablate --model gpt2 --data pairs.txt --out new
reproduce ablate --model gpt2 --data data.txt --out new --components MAGIC
reproduce align --model bert --data pairs.txt --out new
reproduce align --model bart --data pairs.txt --out new --gold nowhere.gold
reproduce align --model bart --data pairs.txt --out new --scope MAGIC
serve --port none
reproduce demo surplus
"""
#: Commands that say how far they are, which is no part of an error.
LOUD = ("run", "reproduce", "evaluate")


def wrong_commands(settings: dict[str, dict[str, Any]]) -> Values:
    """The exit status and both streams of every wrong command."""
    values: Values = {}
    with folder_of_examples(settings):
        for line in COMMANDS.strip().splitlines():
            before = _listing()
            words = shlex.split(line)
            quiet = ["--quiet"] if words[0] in LOUD else []
            status, out, err = run_command([*words, *quiet])
            left = sorted(_listing() - before)
            values[line] = f"exit {status}\n{err}" + (f"printed: {out}" if out else "")
            if left:
                values[line] += f"left behind: {', '.join(left)}\n"
            for name in left:  # or the next command would find it
                shutil.rmtree(name) if Path(name).is_dir() else Path(name).unlink()
    return values


def _listing() -> set[str]:
    return {str(path) for path in Path().iterdir()}


def wrong_calls(settings: dict[str, dict[str, Any]]) -> Values:
    """The class and the line of the error of every wrong call in Python."""
    values: Values = {}
    with folder_of_examples(settings):
        for name, call in _python_calls().items():
            try:
                result = call()
            except Exception as error:
                values[name] = in_words(error)
            else:
                values[name] = f"no error: {type(result).__name__}"
    return values


def _python_calls() -> dict[str, Callable[[], Any]]:
    bert, gpt2, bart, vit, encoder = (
        normlens.load(name, device="cpu") for name in ("bert", "gpt2", "bart", "vit", "encoder")
    )
    wordless = normlens.load(bert.model, False)
    maps, why, run = bert.maps(LONG), gpt2.explain(LONG), normlens.Run.open("run")
    mask = "a [MASK] ran"
    return {
        "load(3)": lambda: normlens.load(3),
        "load('')": lambda: normlens.load(""),
        "load(name='')": lambda: normlens.load("bert", name=" "),
        "load(dtype)": lambda: normlens.load("bert", dtype="int8"),
        "load(device)": lambda: normlens.load("bert", device="abacus"),
        "load(Linear)": lambda: normlens.load(torch.nn.Linear(2, 2)),
        "load(unknown type)": lambda: normlens.load("unknown-type"),
        "maps()": lambda: bert.maps(),
        "maps('')": lambda: bert.maps(""),
        "maps(3)": lambda: bert.maps(3),
        "maps([])": lambda: bert.maps([]),
        "maps([text, 3])": lambda: bert.maps([LONG, 3]),
        "maps(text, input_ids)": lambda: bert.maps(LONG, input_ids=[5]),
        "maps(input_ids=[])": lambda: bert.maps(input_ids=[]),
        "maps(input_ids beyond the vocabulary)": lambda: bert.maps(input_ids=[999]),
        "maps(input_ids negative)": lambda: bert.maps(input_ids=[-1]),
        "maps(input_ids of floats)": lambda: bert.maps(input_ids=[0.5]),
        "maps(attention_mask of another length)": lambda: bert.maps(
            input_ids=[5, 6], attention_mask=[1]
        ),
        "maps(too long)": lambda: bert.maps("the " * 60),
        "maps(scopes)": lambda: bert.maps(LONG, scopes="FFN"),
        "maps(scopes=[])": lambda: bert.maps(LONG, scopes=[]),
        "maps(layers=9)": lambda: bert.maps(LONG, layers=9),
        "maps(layers=[])": lambda: bert.maps(LONG, layers=[]),
        "maps(layers=0.5)": lambda: bert.maps(LONG, layers=0.5),
        "maps(layers=True)": lambda: bert.maps(LONG, layers=True),
        "maps(nonlinearity)": lambda: bert.maps(LONG, nonlinearity="magic"),
        "maps(samples=0)": lambda: bert.maps(LONG, samples=0),
        "maps(seed=0.5)": lambda: bert.maps(LONG, seed=0.5),
        "maps(batch_size=0)": lambda: bert.maps(LONG, batch_size=0),
        "maps(batch_size=many)": lambda: bert.maps(LONG, batch_size="many"),
        "maps(memory_limit)": lambda: bert.maps(LONG, memory_limit="much"),
        "maps(memory_limit too low)": lambda: bert.maps(LONG, memory_limit=10),
        "maps(precision)": lambda: bert.maps(LONG, precision="half"),
        "maps(map_dtype)": lambda: bert.maps(LONG, map_dtype="int8"),
        "maps(origin)": lambda: bert.maps(LONG, origin="output"),
        "maps(origin, heads)": lambda: bert.maps(LONG, origin="input", heads=True),
        "maps(origin, statistics)": lambda: bert.maps(LONG, origin="input", statistics=True),
        "maps(origin, weights)": lambda: bert.maps(LONG, origin="input", scopes="ATTN-W"),
        "maps(unknown option)": lambda: bert.maps(LONG, magic=True),
        "maps(target) of one stack": lambda: bert.maps(LONG, "a cat"),
        "maps(out=.csv)": lambda: bert.maps(LONG, out="maps.csv"),
        "maps(out) of several": lambda: bert.maps([LONG, SHORT], out="a.safetensors"),
        "maps(out) that is there": lambda: bert.maps(LONG, out="maps.safetensors"),
        "maps(text) without tokenizer": lambda: wordless.maps(LONG),
        "maps(sampling_rate) of a text": lambda: bert.maps(LONG, sampling_rate=16000),
        "maps(text) of a picture model": lambda: vit.maps(LONG),
        "maps(wrong shape) of a picture model": lambda: vit.maps(noise(2, 12, 12)),
        "maps(nan) of a picture model": lambda: vit.maps(noise(3, 12, 12) * float("nan")),
        "maps(token_type_ids) of a pair": lambda: bart.maps(
            input_ids=[5], decoder_input_ids=[5], token_type_ids=[0]
        ),
        "maps[unknown]": lambda: maps["FFN"],
        "maps.at(9)": lambda: maps.at("FF", 9),
        "maps.similarity": lambda: maps.similarity("ATTN-N", "FFN"),
        "maps.amplification(axis)": lambda: maps.amplification("LN1", "FF", "row"),
        "maps.mixing_ratio of words": lambda: maps.words().mixing_ratio("FF"),
        "maps.rollout(unknown)": lambda: maps.rollout("FFN"),
        "maps.rollout of words": lambda: maps.words().rollout("FF"),
        "maps.rollout of one layer": lambda: bert.maps(LONG, layers=1).rollout("FF"),
        "maps.save(.csv)": lambda: maps.save("new.csv"),
        "maps.save(no folder)": lambda: maps.save("no/such/maps.safetensors"),
        "maps.save(overwrite=False)": lambda: maps.save("maps.safetensors", overwrite=False),
        "maps.save over a foreign file": lambda: maps.save("foreign.safetensors"),
        "open(nowhere)": lambda: normlens.open("nowhere.safetensors"),
        "open(short)": lambda: normlens.open("short.safetensors"),
        "open(garbage)": lambda: normlens.open("garbage.safetensors"),
        "open(foreign)": lambda: normlens.open("foreign.safetensors"),
        "open(newer)": lambda: normlens.open("newer.safetensors"),
        "open(misfit)": lambda: normlens.open("misfit.safetensors"),
        "open(folder)": lambda: normlens.open("bert"),
        "Maps.load(explanation)": lambda: normlens.Maps.load("why.safetensors"),
        "Explanation.load(maps)": lambda: normlens.Explanation.load("maps.safetensors"),
        "Cosine.load(maps)": lambda: normlens.Cosine.load("maps.safetensors"),
        "explain() without a mask": lambda: bert.explain(LONG),
        "explain() without a head": lambda: encoder.explain(LONG),
        "explain(target unknown)": lambda: bert.explain(mask, target="zebra"),
        "explain(target of several tokens)": lambda: bert.explain(mask, target="cats"),
        "explain(target beyond)": lambda: bert.explain(mask, target=9999),
        "explain(contrast is the target)": lambda: bert.explain(mask, target="cat", contrast="cat"),
        "explain(position=99)": lambda: gpt2.explain(LONG, position=99),
        "explain(position=word)": lambda: gpt2.explain(LONG, position="x"),
        "explain(shapley)": lambda: gpt2.explain(LONG, nonlinearity="shapley"),
        "explain(scopes)": lambda: gpt2.explain(LONG, scopes="FFN"),
        "explain(direction too short)": lambda: gpt2.explain(LONG, direction=[1.0], position=1),
        "explain(direction, target)": lambda: gpt2.explain(
            LONG, direction=noise(16), position=1, target="cat"
        ),
        "explain(layer without direction)": lambda: gpt2.explain(LONG, layer=0),
        "explain(layer=9)": lambda: gpt2.explain(LONG, direction=noise(16), position=1, layer=9),
        "explain(token) of one stack": lambda: gpt2.explain(LONG, token=1),
        "explain(position) of a pair": lambda: bart.explain(LONG, target=SHORT, position=1),
        "explain(direction) of a pair": lambda: bart.explain(LONG, direction=noise(16)),
        "explain(token=99)": lambda: bart.explain(LONG, target=SHORT, token=99),
        "explain(token unknown)": lambda: bart.explain(LONG, target=SHORT, token="zebra"),
        "why.flow_behind": lambda: why.flow_behind("FF"),
        "why.flow that is not there": lambda: gpt2.explain(LONG, flow=False).flow,
        "why.source of one stack": lambda: why.source,
        "cosine(a)": lambda: bert.cosine(LONG),
        "cosine('', b)": lambda: bert.cosine("", LONG),
        "cosine([])": lambda: bert.cosine([]),
        "cosine of a pair model": lambda: bart.cosine(LONG, SHORT),
        "cosine of a picture model": lambda: vit.cosine(LONG, SHORT),
        "cosine without tokenizer": lambda: wordless.cosine(LONG, SHORT),
        "rollouts.method(magic)": lambda: normlens.rollouts.method("magic"),
        "rollouts.globenc of gpt2": lambda: normlens.rollouts.globenc(gpt2, LONG),
        "rollouts.alti(scope)": lambda: normlens.rollouts.alti(bert, LONG, scope="FFN"),
        "rollouts.alti of a pair model": lambda: normlens.rollouts.alti(bart, LONG),
        "register()": lambda: normlens.register(),
        "register(class)": lambda: normlens.register("mine")(int),
        "run(measures)": lambda: normlens.run("bert", "data.txt", "new", measures="magic"),
        "run(unknown option)": lambda: normlens.run("bert", "data.txt", "new", magic=1),
        "run(mask)": lambda: normlens.run("bert", "data.txt", "new", mask=2),
        "Run.open(nowhere)": lambda: normlens.Run.open("nowhere"),
        "run.table(unknown)": lambda: run.table("nothing"),
        "run.sql(wrong)": lambda: run.sql("SELEKT 1"),
        "run.sql(unknown column)": lambda: run.sql("SELECT nothing FROM mixing"),
        "run.export(.docx)": lambda: run.export("SELECT 1", "answer.docx"),
        "resume(nowhere)": lambda: normlens.resume("nowhere"),
        "resume(other seed)": lambda: normlens.resume("run", seed=7),
        "evaluate(methods)": lambda: normlens.evaluate(
            "classifier", "data.txt", "new", methods="magic"
        ),
        "ablate(kinds)": lambda: normlens.ablate("gpt2", "data.txt", "new", kinds="magic"),
        "align of one stack": lambda: normlens.align("bert", "pairs.txt", "new"),
    }
