"""The mutants that `tools/mutate.py` draws."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_mutants_are_inside_functions_and_no_messages() -> None:
    spec = importlib.util.spec_from_file_location("mutate", ROOT / "tools" / "mutate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    source = (
        'N = 3\n\ndef f(x: int = 1) -> int:\n    """D 5."""\n    return x + 2 if x < 4 else 0\n'
    )
    made = [*module.mutants_of("a.py", source + '\ndef g():\n    raise ValueError(f"{7}")\n')]
    assert {one.kind for one in made} == {
        *("arithmetic", "comparison", "constant", "return None", "statement removed")
    }
    assert {one.old for one in made if one.kind == "constant"} == {"2", "4", "0"}
    for one in made:
        assert source[one.start : one.end] == one.old or one.function == "g"
