"""Characters that no installed font has: which package to install, said once."""

from __future__ import annotations

import warnings

import pytest

pytest.importorskip("matplotlib")

from normlens.figures import fonts, missing_fonts


@pytest.mark.parametrize(
    ("character", "package"),
    [
        ("他", "fonts-noto-cjk"),
        ("の", "fonts-noto-cjk"),
        ("한", "fonts-noto-cjk"),
        ("。", "fonts-noto-cjk"),
        ("😀", "fonts-symbola"),
        ("ሰ", "fonts-noto-core"),
        ("\n", None),
    ],
)
def test_every_script_has_a_package(character: str, package: str | None) -> None:
    assert missing_fonts.package_for(ord(character)) == package


def test_a_package_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missing_fonts, "_NAMED", set())
    monkeypatch.setattr(fonts, "_letters", lambda path: frozenset(map(ord, "abc □")))
    with pytest.warns(UserWarning, match=r"has 他 \(U\+4ED6\).*apt install fonts-noto-cjk") as said:
        assert fonts.fonts_for(["a 他说"]).missing == {ord("他"), ord("说")}
    assert len(said) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fonts.fonts_for(["日本"])
        fonts.fonts_for(["abc\n"])
    with pytest.warns(UserWarning, match="fonts-symbola"):
        fonts.fonts_for(["😀"])
