"""The doctor reports what is there, and notices wrong numbers."""

from __future__ import annotations

from typing import Any

import pytest

from normlens import cli
from normlens.lens import Lens
from normlens.loading import doctor


class OtherRule(Lens):
    """A lens whose maps are complete, and still not those of the method."""

    def maps(self, *args: Any, **options: Any) -> Any:
        return super().maps(*args, nonlinearity="gradient", **options)


def test_numbers_are_those_of_the_definition(capsys: pytest.CaptureFixture[str]) -> None:
    checks = doctor.self_check()
    assert [check.model_type for check in checks] == ["bert", "llama"]
    for check in checks:
        assert check.passed
        assert check.difference < 1e-12
    assert cli.main(["check"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    for words in ("normlens", "torch", "cpu", "minilm", "Self-check", "ok"):
        assert words in out
    assert "FAILED" not in out


def test_another_method_is_noticed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "Lens", OtherRule)
    for check in doctor.self_check():
        assert not check.passed
        assert check.difference > 1e-3
    assert cli.main(["check"]) == 1
    out, err = capsys.readouterr()
    assert "FAILED" in out
    assert err.startswith("error: the self-check failed")
