"""Sizes of viewer files, and how long a change of layer or scope takes in a browser.

    python benchmarks/viewer.py [--tokens 512] [--layers 12]

It needs playwright and Chromium (CHROMIUM names another binary). A change lasts from the key or
click that asks for it until the map is drawn ("map"), and until the strip's similarities are there
too and the browser has painted everything ("all"). The first time a layer is opened its maps are
decoded; neighbours of the layer looked at are decoded ahead, so jumps are the slow case.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from normlens.results.maps import Maps

SCOPES = [
    "ATTN-W",
    "ATTN-N",
    "ATTNRES-N",
    "ATTNRESLN-N",
    "ATTNRESLNFF-N",
    "ATTNRESLNFFRES-N",
    "ATTNRESLNFFRESLN-N",
]
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
CHANGE = """
([key, layer]) => new Promise((done) => {
  const root = document.getElementById("normlens-page").shadowRoot.querySelector(".normlens");
  const { drawn, painted } = root.dataset;
  const start = performance.now();
  let map = null;
  new MutationObserver((_, observer) => {
    if (map === null && root.dataset.painted !== painted) map = performance.now() - start;
    if (root.dataset.drawn === drawn || root.dataset.busy !== "false") return;
    observer.disconnect();
    requestAnimationFrame(() => setTimeout(() => done([map, performance.now() - start])));
  }).observe(root, { attributes: true });
  if (layer !== null) root.querySelector(`[data-layer="${layer}"]`).click();
  else document.dispatchEvent(new KeyboardEvent("keydown", { key }));
})
"""


def example(tokens: int, layers: int, causal: bool) -> Maps:
    """Values that spread as real ones do, but without structure: the hard case to compress."""
    rng = np.random.default_rng(0)
    allowed = np.ones((layers, tokens, tokens), dtype=bool)
    if causal:
        allowed &= np.tril(allowed[0])
    large = 10 * np.eye(tokens, dtype=np.float32)
    arrays = {
        scope: (rng.lognormal(0, 1.5, allowed.shape).astype(np.float32) + large) * allowed
        for scope in SCOPES
    }
    words = [f"token{k}" for k in range(tokens)]
    return Maps(
        arrays=arrays,
        raw_tokens=words,
        layers=list(range(layers)),
        allowed=allowed,
        completeness=1e-6,
        provenance={"model": "example", "components": "ATTN RES LN FF RES LN"},
        mixing={scope: rng.random((layers, tokens), dtype=np.float32) for scope in SCOPES},
        special=[k == 0 for k in range(tokens)],
        token_words=list(range(tokens)),
        word_labels=words,
        text=" ".join(words),
    )


Times = list[tuple[float, float]]


def press(page: Any, key: str, times: int) -> Times:
    return [page.evaluate(CHANGE, [key, None]) for _ in range(times)]


def jump(page: Any, layers: list[int]) -> Times:
    found = []
    for layer in layers:
        page.wait_for_timeout(1500)  # as a reader would look at the map
        found.append(page.evaluate(CHANGE, [None, layer]))
    return found


def report(name: str, times: Times) -> None:
    maps, everything = (sorted(column) for column in zip(*times, strict=True))
    print(
        f"  {name:<36} map {statistics.median(maps):5.0f} ms   "
        f"all {statistics.median(everything):5.0f} ms, longest {everything[-1]:5.0f} ms"
        f"   ({len(times)} changes)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--layers", type=int, default=12)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="normlens-bench-"))
    print("File sizes (12 layers, 7 scopes)")
    for tokens in sorted({64, options.tokens}):
        for causal in (False, True):
            path = example(tokens, 12, causal).to_html(folder / f"{tokens}-{causal}.html")
            kind = "causal" if causal else "bidirectional"
            print(f"  {tokens:>4} tokens, {kind:<14} {path.stat().st_size / 1e6:6.2f} MB")
    browser_path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if browser_path is None:
        print("no Chromium is here (apt-get install chromium); times are not measured")
        return
    from playwright.sync_api import sync_playwright

    path = example(options.tokens, options.layers, False).to_html(folder / "timed.html")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=FLAGS)
        page = browser.new_page(viewport={"width": 1360, "height": 900})
        opening = page.goto(f"file://{path}", wait_until="commit")
        assert opening is None or opening.ok
        page.wait_for_selector("[data-busy=false]")
        print(f"Changes at {options.tokens} tokens, {options.layers} layers")
        far = list(range(3, options.layers, 3))
        for view in ("map", "compare"):
            page.goto("about:blank")
            page.goto(f"file://{path}#view={view}&scope=FF")
            page.wait_for_selector("[data-busy=false]")
            report(f"{view}: jump to a layer, first time", jump(page, far))
            report(f"{view}: next layer", press(page, "ArrowUp", far[-1]))
            report(f"{view}: next scope", press(page, "ArrowRight", 2))
            report(f"{view}: scope before", press(page, "ArrowLeft", 3))
        browser.close()
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
