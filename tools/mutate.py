"""Measure how well the tests protect: change one function at a time, see whether a test fails.

    pip install coverage            # for `reach` alone
    python tools/mutate.py reach    # draw mutants, run the tests once, note which reach their lines
    python tools/mutate.py try      # each mutant with the tests that reach its line; resumes
    python tools/mutate.py table    # caught and escaped by room, then the ones that escaped

A mutant is a change inside a function: a comparison, a sign, a constant, an argument, a statement.
The draw depends on the seed and on the text of the lines alone, so a change elsewhere keeps it.
Nothing of the tree is changed: a fork of one process replaces the function's code and runs tests.
`try --reach FOLDER` takes what another tree's `reach` has noted; tests that it does not know are
asked where they stand in the mutant's room.
"""

from __future__ import annotations

import argparse
import ast
import gc
import hashlib
import importlib
import json
import math
import os
import random
import signal
import sys
import time
import traceback
from collections import defaultdict
from collections.abc import Iterator
from glob import glob
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "mutate"
ROOMS = "frozen", "trace", "families", "measures", "pipeline", "explain", "results", "corpus/runs"
#: Folders whose tests are asked; those of studies are slow and stand on what is drawn here.
TESTS = "corpus explain frozen gpu inputs loading measures models pipeline plan results trace *.py"
OPTIONS = ["-q", "-p", "no:cacheprovider", "-m", "not gpu and (guard or not slow)"]
#: What the chosen tests of one mutant may have taken together, in seconds.
BUDGET = 25.0
MOST = 40
OTHER = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


class Mutant(NamedTuple):
    """One change: bytes ``start:end`` of a file become ``new``; ``lines`` are its statement's."""

    key: str
    path: str
    function: str
    first: int  # line of the function, or of its first decorator
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
        case ast.BinOp(op=op, left=left, right=right) if type(op) in OTHER:
            if not any(isinstance(side, ast.JoinedStr | ast.List) or _is_text(side)
                       for side in (left, right)):  # fmt: skip
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


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _is_skipped(node: ast.AST) -> bool:
    """Messages, logging, annotations and blocks for type checkers are not mutated."""
    match node:
        case ast.If(test=test) if "TYPE_CHECKING" in ast.unparse(test):
            return True
        case ast.Expr(value=ast.Constant()) | ast.JoinedStr() | ast.arguments() | ast.Assert():
            return True
        case ast.Expr(value=ast.Call(func=func)):
            silent = {"log", "logger", "logging", "warnings"}
            return bool(silent & set(ast.unparse(func).split(".")))
        case ast.FunctionDef(name="__repr__" | "__str__" | "_repr_html_"):
            return True
    return False


def mutants_of(path: str, text: str) -> Iterator[Mutant]:
    """Every mutant of one file."""
    starts = [0]
    for line in text.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def walk(node: Any, lines: list[int], owner: str, outer: Any) -> Iterator[Mutant]:
        if _is_skipped(node):
            return
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if isinstance(body, list) and body else node.end_lineno
            lines = list(range(node.lineno, max(node.lineno, last or 0) + 1))
        if outer is not None and hasattr(node, "lineno"):
            start = starts[node.lineno - 1] + node.col_offset
            end = starts[node.end_lineno - 1] + node.end_col_offset
            old = text.encode()[start:end].decode()
            for kind, new in variants(node):
                where = (path, *outer, kind, node.lineno, lines, start, end, old, new)
                yield Mutant(f"{path} {owner}", *where)
        fields = [*ast.iter_fields(node)]
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            owner = f"{owner}.{node.name}".lstrip(".")
            if isinstance(node, ast.FunctionDef) and outer is None:
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                outer, fields = (owner, first), [("body", node.body)]
        for name, field in fields:
            if name in ("annotation", "returns", "exc"):
                continue
            for child in field if isinstance(field, list) else [field]:
                if isinstance(child, ast.AST):
                    yield from walk(child, lines, owner, outer)

    yield from walk(ast.parse(text), [], "", None)


def draw(number: int, seed: int) -> list[Mutant]:
    """``number`` mutants: the lines with the smallest hashes, then one mutant of each."""
    by_line: dict[tuple[str, int], list[Mutant]] = defaultdict(list)
    for room in ROOMS:
        for path in sorted((ROOT / "src/normlens" / room).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            for mutant in mutants_of(name, path.read_text(encoding="utf-8")):
                by_line[name, mutant.line].append(mutant)
    ranked = {}
    for mutants in by_line.values():
        text = f"{seed} {mutants[0].key} {sorted({one.old for one in mutants})}"
        digest = hashlib.sha256(text.encode()).hexdigest()
        dice = random.Random(digest)
        kind = dice.choice(sorted({one.kind for one in mutants}))
        one = dice.choice([one for one in mutants if one.kind == kind])
        ranked[digest] = one._replace(key=digest[:12])
    return [ranked[digest] for digest in sorted(ranked)[:number]]


class Contexts:
    """A plugin of pytest for one run of the tests: each is a context of the coverage."""

    def __init__(self) -> None:
        import coverage

        include = [f"{ROOT}/src/normlens/*"]
        self.coverage = coverage.Coverage(data_file=None, include=include, config_file=False)
        self.coverage.start()
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()

    def pytest_runtest_protocol(self, item: Any) -> None:
        self.coverage.switch_context(item.nodeid)
        self.began = time.perf_counter()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.seconds[nodeid] = time.perf_counter() - self.began

    def pytest_runtest_logreport(self, report: Any) -> None:
        if not report.passed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        data, passed = self.coverage.get_data(), set(self.seconds) - self.failed
        found = {}
        for mutant in stored(WORK):
            contexts = data.contexts_by_lineno(str(ROOT / mutant.path))
            lines = set().union(*(contexts.get(line, ()) for line in mutant.lines))
            found[mutant.key] = sorted(lines & passed)
        (WORK / "reach.json").write_text(json.dumps({"seconds": self.seconds, "mutants": found}))


def stored(folder: Path) -> list[Mutant]:
    return [Mutant(*one) for one in json.loads((folder / "mutants.json").read_text())]


class Trials:
    """A plugin of pytest that tries mutants in forks of a process that has collected the tests."""

    def __init__(self, reach: Path):
        self.reach, self.results = json.loads(reach.read_text()), WORK / "results.jsonl"
        self.sound: set[str] = set()

    def pytest_runtestloop(self, session: Any) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        known = self.results.read_text().splitlines() if self.results.exists() else []
        done = {json.loads(line)["key"] for line in known}
        for mutant in stored(WORK):
            if mutant.key not in done:
                began = time.monotonic()
                tests = self.chosen(mutant)
                outcome, by = self.outcome(mutant, tests)
                result = mutant._asdict() | {"outcome": outcome, "by": by, "tests": len(tests)}
                with self.results.open("a") as file:
                    file.write(json.dumps(result) + "\n")
                took = time.monotonic() - began
                print(f"{mutant.path}:{mutant.line} {outcome} {by} {took:.0f} s", flush=True)
        return True

    def chosen(self, mutant: Mutant) -> list[str]:
        """Those that are known to reach it, then the fastest of each file, up to the budget."""
        seconds = self.reach["seconds"]
        room = mutant.path.split("/")[2].replace("families", "models")
        near = [name for name in self.items if name.startswith(f"tests/{room}/")]
        tests = {*self.reach["mutants"].get(mutant.key, ()), *near} & set(self.items)
        if mutant.key in self.reach["mutants"]:
            tests -= {test for test in near if test in seconds} - {
                *self.reach["mutants"][mutant.key]
            }
        by_file: dict[str, list[tuple[float, str]]] = defaultdict(list)
        for test in tests:
            by_file[test.split("::")[0]].append((seconds.get(test, 0.15), test))
        turns = [(turn, *one) for some in by_file.values() for turn, one in enumerate(sorted(some))]
        reaching = set(self.reach["mutants"].get(mutant.key, ()))
        kept, spent = [], 0.0
        for _, cost, test in sorted(turns, key=lambda turn: (turn[2] not in reaching, turn)):
            if (spent + cost <= BUDGET and len(kept) < MOST) or not kept:
                kept.append(test)
                spent += cost
        return kept

    def outcome(self, mutant: Mutant, tests: list[str]) -> tuple[str, str]:
        """Whether a test fails; one that fails without the mutant, too, is left out."""
        while tests:
            outcome, by = self.run(mutant, tests)
            if outcome != "failed" or by in self.sound:
                return outcome, by
            if self.run(None, [by])[0] == "passed":
                self.sound.add(by)
                return outcome, by
            tests = [test for test in tests if test != by]
        return "no test reaches it", ""

    def run(self, mutant: Mutant | None, tests: list[str]) -> tuple[str, str]:
        blamed, child = WORK / "blamed.txt", os.fork()
        if child == 0:
            os.setsid()
            code = 3
            try:
                if mutant is not None:
                    replace_code(mutant)
                code = self.first_failure(tests, blamed)
            except BaseException:
                (WORK / "error.txt").write_text(traceback.format_exc())
            finally:
                os._exit(code)
        deadline = time.monotonic() + 4 * BUDGET + 60
        while not (ended := os.waitpid(child, os.WNOHANG))[0]:
            if time.monotonic() > deadline:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return "too long", ""
            time.sleep(0.02)
        code = os.waitstatus_to_exitcode(ended[1])
        if code == 1:
            return "failed", blamed.read_text()
        return {0: "passed", 3: "not made"}.get(code, "crashed"), ""

    def first_failure(self, tests: list[str], blamed: Path) -> int:
        items = [self.items[test] for test in tests]
        before = items[0].session.testsfailed  # files that could not be collected
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if item.session.testsfailed > before:
                blamed.write_text(item.nodeid)
                return 1
        return 0


def replace_code(mutant: Mutant) -> None:
    """Give the function of a mutant its changed code, wherever it is referred to."""
    path = ROOT / mutant.path
    inside = path.relative_to(ROOT / "src").with_suffix("")
    importlib.import_module(".".join(inside.parts).removesuffix(".__init__"))
    text = path.read_bytes()
    text = text[: mutant.start] + mutant.new.encode() + text[mutant.end :]
    (code,) = codes_of(compile(text, str(path), "exec", dont_inherit=True), mutant)
    gc.unfreeze()  # frozen objects are not listed
    functions = [each for each in gc.get_objects() if type(each) is FunctionType]
    found = [each for each in functions if [*codes_of(each.__code__, mutant)] == [each.__code__]]
    found = [each for each in found if Path(each.__code__.co_filename) == path]
    assert found, mutant
    for function in found:
        function.__code__ = code


def codes_of(code: CodeType, mutant: Mutant) -> Iterator[CodeType]:
    if (code.co_qualname, code.co_firstlineno) == (mutant.function, mutant.first):
        yield code
        return
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes_of(constant, mutant)


def wilson(caught: int, drawn: int) -> str:
    """The share with its 95 % interval."""
    share, z = caught / drawn, 1.96
    middle = (share + z * z / (2 * drawn)) / (1 + z * z / drawn)
    half = z * math.sqrt(share * (1 - share) / drawn + z * z / (4 * drawn**2)) / (1 + z * z / drawn)
    return f"{share:.1%} ({middle - half:.1%} to {middle + half:.1%})"


def table() -> None:
    """Print what was caught by room, then what escaped."""
    results = [json.loads(line) for line in (WORK / "results.jsonl").open()]
    results = [one for one in results if one["outcome"] != "not made"]
    print("| room | drawn | caught | escaped | share caught (95 %) |\n|---|---|---|---|---|")
    for room in [*ROOMS, ""]:
        rows = [one for one in results if one["path"].startswith(f"src/normlens/{room}")]
        caught = sum(one["outcome"] in ("failed", "too long", "crashed") for one in rows)
        if rows:
            counts = f"{len(rows)} | {caught} | {len(rows) - caught} | {wilson(caught, len(rows))}"
            print(f"| {room or 'all'} | {counts} |")
    for one in results:
        if one["outcome"] in ("passed", "no test reaches it"):
            old, new = (" ".join(one[name].split()) for name in ("old", "new"))
            where = f"{one['path']}:{one['line']} {one['kind']}"
            print(f"{where}: `{old}` -> `{new}` ({one['tests']} tests)")


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("command", choices=["reach", "try", "table"])
    parser.add_argument("--number", type=int, default=200)
    parser.add_argument("--seed", type=int, default=2024)
    parser.add_argument("--reach", type=Path, default=WORK)
    given = parser.parse_args()
    if given.command == "table":
        return table()
    WORK.mkdir(parents=True, exist_ok=True)
    if given.command == "reach" or not (WORK / "mutants.json").exists():
        (WORK / "mutants.json").write_text(json.dumps(draw(given.number, given.seed)))
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT / "src"))
    os.environ["PYTHONPATH"] = os.pathsep.join([f"{ROOT}/src", os.environ.get("PYTHONPATH", "")])
    import pytest

    paths = [path for name in TESTS.split() for path in sorted(glob(f"tests/{name}"))]
    plugin = Contexts() if given.command == "reach" else Trials(given.reach / "reach.json")
    more = [] if given.command == "reach" else [f"--basetemp={WORK}/tmp", "-s"]
    pytest.main(["-p", "no:xdist", *OPTIONS, *more, *paths], plugins=[plugin])
    return None


if __name__ == "__main__":
    main()
