"""Measure how well the tests protect: change one line at a time, see whether a test fails.

    pip install coverage
    python tools/mutate.py reach    # one run of the tests, which notes the lines that each reaches
    python tools/mutate.py try      # each mutant with the tests that reach its line; resumes
    python tools/mutate.py table    # caught and escaped by room, then the ones that escaped

The draw depends on the seed and on the text of the lines alone, so a change elsewhere keeps it.
Everything is written to build/mutate, where a copy of the tree is changed, never the tree itself.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "mutate"
PACKAGE = "src/normlens"
ROOMS = "frozen trace families measures pipeline explain results corpus/runs".split()
SELECTION = "not gpu and (guard or not slow)"
#: Folders whose tests are asked; those of other rooms are slow and assert what is built on these.
TESTS = (
    *("corpus", "explain", "frozen", "gpu", "inputs", "loading", "measures", "models", "pipeline"),
    *("plan", "results", "trace", "test_lens.py", "test_loading.py", "test_pairs.py"),
    *("test_cli.py", "test_contracts.py", "test_options.py", "test_scopes.py", "test_text.py"),
    *("test_two_sequences.py", "test_memory_shortage.py", "test_parsing.py"),
)
#: What the chosen tests of one mutant may have taken together, in seconds.
BUDGET = 10.0
OTHER = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip
SILENT = "log logger warnings logging".split()


class Mutant(NamedTuple):
    """One change: bytes ``start:end`` of a file become ``new``; ``lines`` are its statement's."""

    key: str
    path: str
    kind: str
    line: int
    lines: list[int]
    start: int
    end: int
    old: str
    new: str


def variants(node: ast.AST) -> Iterator[tuple[str, str]]:
    """The ways in which a node may be changed: (kind, new text)."""

    def made(kind: str, **changes: Any) -> tuple[str, str]:
        fields = {name: getattr(node, name) for name in node._fields} | changes
        return kind, f"({ast.unparse(ast.fix_missing_locations(type(node)(**fields)))})"

    match node:
        case ast.Compare(ops=[op]):
            yield made("comparison", ops=[OTHER[type(op)]()])
        case ast.BinOp(op=op) if type(op) in OTHER:
            if not any(isinstance(side, (ast.JoinedStr, ast.List)) or _text(side)
                       for side in (node.left, node.right)):  # fmt: skip
                yield made("arithmetic", op=OTHER[type(op)]())
        case ast.BoolOp(op=op):
            yield made("and/or", op=OTHER[type(op)]())
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield "sign or not dropped", f"({ast.unparse(node.operand)})"
        case ast.Constant(value=bool(value)):
            yield made("constant", value=not value)
        case ast.Constant(value=int(value) | float(value)):
            yield made("constant", value=value + 1)
            yield made("constant", value=value - 1)
        case ast.Call(args=args, keywords=keywords):
            if len(args) > 1 and not isinstance(args[-1], ast.Starred):
                yield made("argument dropped", args=args[:-1])
            for at in range(len(keywords)):
                yield made("argument dropped", keywords=keywords[:at] + keywords[at + 1 :])
            if len(args) > 1 and not any(isinstance(arg, ast.Starred) for arg in args[:2]):
                yield made("arguments swapped", args=[args[1], args[0], *args[2:]])
        case ast.Return(value=value) if value and ast.unparse(value) != "None":
            yield "return None", "return None"
        case ast.AugAssign() | ast.Expr(value=ast.Call()) | ast.Continue() | ast.Break():
            yield "statement removed", "pass"
        case ast.Raise() | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield "statement removed", "pass"


def _text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _skipped(node: ast.AST) -> bool:
    """Messages, logging, annotations and blocks for type checkers are not mutated."""
    match node:
        case ast.If(test=test) if "TYPE_CHECKING" in ast.unparse(test):
            return True
        case ast.Expr(value=ast.Constant()) | ast.JoinedStr() | ast.arg() | ast.Assert():
            return True
        case ast.keyword(arg="tiny"):  # a family's tiny model, which is made for tests
            return True
        case ast.Expr(value=ast.Call(func=func)):
            return any(name in SILENT for name in ast.unparse(func).split("."))
        case ast.FunctionDef(name="__repr__" | "__str__" | "_repr_html_" | "_repr_mimebundle_"):
            return True
        case ast.FunctionDef(decorator_list=decorators):
            return any("overload" in ast.unparse(one) for one in decorators)
    return False


def mutants_of(path: str, text: str) -> Iterator[Mutant]:
    """Every mutant of one file."""
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def walk(node: ast.AST, lines: list[int], owner: str) -> Iterator[Mutant]:
        if _skipped(node):
            return
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if isinstance(body, list) and body else node.end_lineno
            lines = list(range(node.lineno, max(node.lineno, last or 0) + 1))
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            owner = f"{owner}.{node.name}"
        if hasattr(node, "lineno"):
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            old = text.encode()[start:end].decode()
            for number, (kind, new) in enumerate(variants(node)):
                where = f"{path}{owner} {old} {kind} {number}"
                yield Mutant(where, path, kind, node.lineno, lines, start, end, old, new)
        for name, field in ast.iter_fields(node):
            if name in ("annotation", "returns") or (isinstance(node, ast.Raise) and name == "exc"):
                continue
            for child in field if isinstance(field, list) else [field]:
                if isinstance(child, ast.AST):
                    yield from walk(child, lines, owner)

    yield from walk(ast.parse(text), [], "")


def draw(number: int, seed: int) -> list[Mutant]:
    """``number`` mutants: the lines with the smallest hashes, then one mutant of each."""
    by_line: dict[tuple[str, int], list[Mutant]] = defaultdict(list)
    for room in ROOMS:
        for path in sorted((ROOT / PACKAGE / room).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            for mutant in mutants_of(name, path.read_text(encoding="utf-8")):
                by_line[name, mutant.line].append(mutant)
    ranked, seen = [], set[str]()
    for mutants in by_line.values():
        text = f"{seed} {mutants[0].key.split(' ')[0]} {sorted({one.old for one in mutants})}"
        if text not in seen:
            seen.add(text)
            digest = hashlib.sha256(text.encode()).hexdigest()
            dice = random.Random(digest)
            kind = dice.choice(sorted({one.kind for one in mutants}))
            one = dice.choice([one for one in mutants if one.kind == kind])
            ranked.append((digest, one._replace(key=digest[:12])))
    return [mutant for _, mutant in sorted(ranked)[:number]]


# What follows is a plugin of pytest, loaded with `-p mutate`: each test is a coverage context.
STATE: dict[str, Any] = {}


def pytest_configure(config: Any) -> None:
    if os.environ.get("MUTATE_REACH"):
        import coverage

        include = [f"{ROOT / PACKAGE}/*"]
        STATE["coverage"] = coverage.Coverage(data_file=None, include=include, config_file=False)
        STATE["coverage"].start()
        STATE["seconds"], STATE["failed"] = {}, set()


def pytest_runtest_protocol(item: Any) -> None:
    if STATE:
        STATE["coverage"].switch_context(item.nodeid)
        STATE["began"] = time.perf_counter()


def pytest_runtest_logfinish(nodeid: str) -> None:
    if "began" in STATE:
        STATE["seconds"][nodeid] = time.perf_counter() - STATE["began"]


def pytest_runtest_logreport(report: Any) -> None:
    if STATE and not report.passed:
        STATE["failed"].add(report.nodeid)


def pytest_sessionfinish() -> None:
    if not STATE.get("seconds"):
        return
    STATE["coverage"].stop()
    data, passed = STATE["coverage"].get_data(), set(STATE["seconds"]) - STATE["failed"]
    by_mutant, by_file = {}, {}
    for mutant in stored():
        contexts = data.contexts_by_lineno(str(ROOT / mutant.path))
        lines = set().union(*(contexts.get(line, ()) for line in mutant.lines)) & passed
        by_mutant[mutant.key] = sorted(lines)
        by_file[mutant.path] = sorted(set().union(*contexts.values()) & passed)
    found = {"seconds": STATE["seconds"], "mutants": by_mutant, "files": by_file}
    (WORK / f"reach-{os.getpid()}.json").write_text(json.dumps(found))


def stored() -> list[Mutant]:
    return [Mutant(*one) for one in json.loads((WORK / "mutants.json").read_text())]


def reach(number: int, seed: int, jobs: str) -> None:
    """Draw the mutants, then run the tests once and note which reach them."""
    shutil.rmtree(WORK, ignore_errors=True)
    WORK.mkdir(parents=True)
    (WORK / "mutants.json").write_text(json.dumps(draw(number, seed)))
    paths = f"{ROOT / 'src'}{os.pathsep}{ROOT / 'tools'}"
    known = os.environ.get("PYTHONPATH")
    environment = os.environ | {"MUTATE_REACH": "1"}
    environment["PYTHONPATH"] = paths + (os.pathsep + known if known else "")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "mutate", "-n", jobs, "-m", SELECTION]
    command += [path for name in TESTS for path in glob(f"tests/{name}", root_dir=ROOT)]
    subprocess.run(command, cwd=ROOT, env=environment, check=False)


def chosen(mutant: Mutant, found: list[dict[str, Any]], left_out: set[str]) -> list[str]:
    """The tests for a mutant: the fastest of each file first, up to the budget.

    What runs when a module is imported has no test of its own; those that use its file are taken.
    """
    seconds = {test: time for one in found for test, time in one["seconds"].items()}
    tests = [test for one in found for test in one["mutants"].get(mutant.key, ())]
    tests = tests or [test for one in found for test in one["files"].get(mutant.path, ())]
    by_file: dict[str, list[str]] = defaultdict(list)
    for test in sorted(set(tests) - left_out, key=lambda test: (seconds[test], test)):
        by_file[test.split("::")[0]].append(test)
    rounds = sorted(
        (place, seconds[test], test)
        for tests in by_file.values()
        for place, test in enumerate(tests)
    )
    kept, spent = [], 0.0
    for _, cost, test in rounds:
        if spent + cost <= BUDGET or not kept:
            kept.append(test)
            spent += cost
    return kept


def run(copy: Path, tests: list[str], limit: float) -> tuple[str, str]:
    """Run tests in a fork of this process: (passed, failed or too long; the test that failed)."""
    report, child = WORK / "report.txt", os.fork()
    report.write_text("")
    if child == 0:
        os.setsid()
        os.chdir(copy)
        silent = os.open(WORK / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        import pytest

        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-rfE"]
        os._exit(pytest.main([*options, f"--rootdir={copy}", *tests]))
    deadline = time.monotonic() + limit
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "too long", ""
        time.sleep(0.05)
    said = (WORK / "output.txt").read_text(errors="replace").splitlines()
    blamed = [line.split(" ")[1] for line in said if line.startswith(("FAILED ", "ERROR "))]
    return ("passed" if ended[1] == 0 else "failed"), (blamed or [""])[0]


def attempt() -> None:
    """Try every mutant that has no result yet; a failing test counts if it passes unchanged."""
    copy, results = WORK / "tree", WORK / "results.jsonl"
    if not copy.exists():
        names = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
        for name in filter(None, names):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
        subprocess.run(["git", "init", "-q"], cwd=copy, check=False)
    os.environ["PYTHONPATH"] = f"{copy / 'src'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    sys.path.insert(0, str(copy / "src"))
    sys.path.insert(0, str(copy / "tests"))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRITON_INTERPRET", "1")
    import pandas, pyarrow, pytest, scipy, torch, transformers  # noqa: E401, F401  # so that forks have them

    torch.set_num_threads(1)
    found = [json.loads(path.read_text()) for path in WORK.glob("reach-*.json")]
    known = [json.loads(line) for line in results.open()] if results.exists() else []
    done, sound, unsound = {one["key"] for one in known}, set[str](), set[str]()
    for number, mutant in enumerate(stored()):
        if mutant.key in done:
            continue
        path = copy / mutant.path
        original = path.read_bytes()
        began, outcome, by = time.monotonic(), "failed", ""
        while outcome == "failed":
            tests = chosen(mutant, found, unsound)
            if not tests:
                outcome = "no test reaches it"
                break
            new = mutant.new.encode()
            path.write_bytes(original[: mutant.start] + new + original[mutant.end :])
            # Compiled files are checked by size and second.
            os.utime(path, (number + 10**9, number + 10**9))
            outcome, by = run(copy, tests, 4 * BUDGET + 60)
            path.write_bytes(original)
            os.utime(path, (10**9 - 1, 10**9 - 1))
            if outcome != "failed" or not by or by in sound or "::" not in by:
                break
            if run(copy, [by], 4 * BUDGET + 60)[0] == "passed":
                sound.add(by)
                break
            unsound.add(by)
        result = mutant._asdict() | {"outcome": outcome, "by": by, "tests": len(tests)}
        with results.open("a") as file:
            file.write(json.dumps(result) + "\n")
        took = time.monotonic() - began
        print(f"{number + 1} {mutant.path}:{mutant.line} {outcome} {by} {took:.0f} s", flush=True)


def wilson(caught: int, drawn: int) -> str:
    """The share with its 95 % interval."""
    share, z = caught / drawn, 1.96
    middle = (share + z * z / (2 * drawn)) / (1 + z * z / drawn)
    half = z / (1 + z * z / drawn)
    half *= math.sqrt(share * (1 - share) / drawn + z * z / (4 * drawn * drawn))
    return f"{share:.1%} ({middle - half:.1%} to {middle + half:.1%})"


def table() -> None:
    """Print what was caught by room, then what escaped."""
    results = [json.loads(line) for line in (WORK / "results.jsonl").open()]
    print("| room | drawn | caught | escaped | share caught (95 %) |\n|---|---|---|---|---|")
    for room in [*ROOMS, ""]:
        rows = [one for one in results if one["path"].startswith(f"{PACKAGE}/{room}")]
        caught = sum(one["outcome"] in ("failed", "too long") for one in rows)
        if rows:
            counts = f"{len(rows)} | {caught} | {len(rows) - caught} | {wilson(caught, len(rows))}"
            print(f"| {room or 'all'} | {counts} |")
    for one in results:
        if one["outcome"] not in ("failed", "too long"):
            old, new = (" ".join(one[name].split()) for name in ("old", "new"))
            print(
                f"{one['path']}:{one['line']} {one['kind']}: `{old}` -> `{new}` ({one['outcome']})"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["reach", "try", "table"])
    parser.add_argument("--number", type=int, default=220)
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--jobs", default="2")
    given = parser.parse_args()
    if given.command == "reach":
        reach(given.number, given.seed, given.jobs)
    else:
        {"try": attempt, "table": table}[given.command]()


if __name__ == "__main__":
    main()
