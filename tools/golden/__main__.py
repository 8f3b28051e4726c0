"""Make the golden set of this version of the package, or compare the package with one.

    python tools/golden make build/golden        # before a change
    python tools/golden compare build/golden     # after it: 1 if anything differs

Numbers of every family, signatures, help, errors, tables and files of results. A comparison says
how many items are bit-equal, within 1e-6 of the largest number beside them, or different.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from fnmatch import fnmatch
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from golden.sections import (
    EXACT,
    FAILED,
    ROOT,
    SECTIONS,
    Job,
    about_this,
    groups_of,
    made,
    versions,
)

if TYPE_CHECKING:
    from golden.store import Difference

ABOUT, KEPT = "about.json", "kept"


def main(arguments: list[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    sections = given.only.split(",") if given.only else list(SECTIONS)
    if unknown := [section for section in sections if section not in SECTIONS]:
        return _fail(f"no section {unknown[0]!r}; choose of {', '.join(SECTIONS)}")
    families = given.families.split(",") if given.families else None
    with tempfile.TemporaryDirectory(prefix="golden-cache-") as cache:
        os.environ["NORMLENS_CACHE"] = cache  # what is learnt about files is no user's
        return (make if given.action == "make" else compare)(given, sections, families)


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="golden", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("make", "compare"))
    parser.add_argument("folder", type=Path, help="where the set is, outside of git")
    parser.add_argument("--only", metavar="LIST", help=f"sections: {','.join(SECTIONS)}")
    parser.add_argument("--families", metavar="LIST", help="model types, and minilm or smollm2")
    parser.add_argument(
        "-j", type=int, default=1, metavar="N", help="processes; 0 works in this one (default: 1)"
    )
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="PATTERN",
        help="items that may differ, such as 'help/commands/normlens query*'; may be repeated",
    )
    parser.add_argument("--accept-new", action="store_true", help="new items are no difference")
    parser.add_argument("--exact", action="store_true", help="numbers must be bit-equal")
    parser.add_argument("--all", action="store_true", help="list all differences, not the first 20")
    return parser


def make(given: argparse.Namespace, sections: list[str], families: list[str] | None) -> int:
    """Store what the package does now; groups that are there already are made again."""
    from golden import store

    folder = given.folder.resolve()
    if folder.exists() and not (folder / ABOUT).is_file() and any(folder.iterdir()):
        return _fail(f"{folder} holds other files; give a new folder, or one with a golden set")
    folder.mkdir(parents=True, exist_ok=True)
    about = {"commit": _commit(), **about_this()}
    (folder / ABOUT).write_text(json.dumps(about, indent=1, ensure_ascii=False))
    about = json.loads((folder / ABOUT).read_text())
    kept = folder / KEPT
    jobs = [Job(s, g, about, kept, kept) for s in sections for g in groups_of(s, about, families)]
    if not jobs:
        return _fail("no such family")
    began, items = time.perf_counter(), Counter[str]()
    for job, values in made(jobs, given.j):
        if values is not None and FAILED in values:
            return _fail(f"{job.section}/{job.group} cannot be made\n{values[FAILED]}")
        if values is not None:
            store.save(folder, job.section, job.group, values)
            items[job.section] += len(values)
            _progress(job, began)
    for section, count in items.items():
        print(f"{section:12} {count:7} items")
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{sum(items.values())} items, {size / 1e6:.1f} MB, {time.perf_counter() - began:.0f} s")
    return 0


def compare(given: argparse.Namespace, sections: list[str], families: list[str] | None) -> int:
    """Make the same again and say what differs; 1 if anything does."""
    from golden import store

    folder = given.folder.resolve()
    if not (folder / ABOUT).is_file():
        return _fail(f"{folder} holds no golden set; make one there first")
    about = json.loads((folder / ABOUT).read_text())
    if (now := versions()) != about["versions"]:
        print(f"note: made with {about['versions']}, compared with {now}")
    began, verdicts, skipped = time.perf_counter(), {s: Counter[str]() for s in sections}, set()
    found: list[store.Difference] = []
    with tempfile.TemporaryDirectory(prefix="golden-") as scratch:
        kept = Path(scratch, KEPT)
        jobs = [
            Job(section, group, about, kept, folder / KEPT)
            for section in sections
            for group in groups_of(section, about, families)
            if group in store.groups(folder, section)
        ]
        if not jobs:
            return _fail("nothing of that is in the golden set")
        for job, values in made(jobs, given.j):
            if values is None:
                skipped.add(job.section)
                continue
            name, old = f"{job.section}/{job.group}", store.load(folder, job.section, job.group)
            if FAILED in values:
                print(values[FAILED], file=sys.stderr)
                why = str(values[FAILED]).strip().splitlines()[-1]
                each_item = [store.Difference(f"{name}/*", store.DIFFERS, f"failed: {why}", inf)]
            else:
                exact = job.section in EXACT
                each_item = store.differences(name, old, values, exact_texts=exact)
            for each in each_item:
                verdict = each.verdict
                if verdict != store.EQUAL and any(fnmatch(each.name, p) for p in given.ignore):
                    verdict = "ignored"
                verdicts[job.section][verdict] += 1
                if _is_wrong(verdict, given) or verdict == store.OLD_REFUSED:
                    found.append(each)
            _progress(job, began)
    _print_table(verdicts, skipped)
    _print_differences(found, None if given.all else 20)
    print(f"{time.perf_counter() - began:.0f} s, compared with {about['commit']}")
    wrong = sum(n for s in verdicts.values() for v, n in s.items() if _is_wrong(v, given))
    return 1 if wrong else 0


def _is_wrong(verdict: str, given: argparse.Namespace) -> bool:
    allowed = {"bit-equal", "ignored", "refused"}
    allowed |= set() if given.exact else {"within"}
    allowed |= {"new"} if given.accept_new else set()
    return verdict not in allowed


def _print_table(verdicts: dict[str, Counter[str]], skipped: set[str]) -> None:
    columns = ("bit-equal", "within", "differs", "missing", "new", "refused", "ignored")
    print(f"{'section':12} {'items':>7} " + " ".join(f"{name:>9}" for name in columns))
    for section, counts in verdicts.items():
        note = "  no GPU here" if section in skipped else ""
        row = " ".join(f"{counts[name]:9}" for name in columns)
        print(f"{section:12} {sum(counts.values()):7} {row}{note}")


def _print_differences(found: list[Difference], most: int | None) -> None:
    """The groups that differ, and the items with the largest differences; a refusal once."""
    groups = Counter("/".join(each.name.split("/")[:2]) for each in found)
    if groups:
        print("in", ", ".join(f"{group} ({count})" for group, count in groups.items()))
    lines = {}
    for each in sorted(found, key=lambda each: -each.size):
        key = each.detail if each.verdict == "refused" else each.name
        lines.setdefault(key, f"{each.verdict:9} {each.name}  {each.detail}".rstrip())
    for line in list(lines.values())[:most]:
        print(line)
    if most is not None and len(lines) > most:
        print(f"… and {len(lines) - most} more (--all lists them)")


def _progress(job: Job, began: float) -> None:
    print(f"{time.perf_counter() - began:6.0f} s  {job.section}/{job.group}", file=sys.stderr)


def _commit() -> str:
    """The commit of the working tree, marked where something in it has changed since."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "an unknown commit"


if __name__ == "__main__":
    sys.exit(main())
