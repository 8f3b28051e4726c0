"""The pictures of README.md and of the documents: maps, explanations, cosines, the viewer.

A random ViT looks at a picture that is drawn by code, as in docs/models.md.

    python benchmarks/pictures.py [--translator FOLDER]

It needs the embedded models, playwright and Chromium (CHROMIUM names another binary). With a
folder that holds opus-mt-en-fr (which needs sentencepiece) it also takes the picture of a
translation.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import transformers
from PIL import Image
from playwright.sync_api import sync_playwright

import normlens
from normlens.results import exports as export
from normlens.results.maps import Maps

IMAGES = Path(__file__).parents[1] / "docs" / "images"
TRANSLATED = IMAGES / "viewer-translation.png"
TEXT = "She teaches soap opera history."
STATE = "layer=3&scope=FF&norm=source&special=0&pair=5:1"


TRANSLATION = (
    "The small house on the hill was sold last year.",
    "La petite maison sur la colline a été vendue l'année dernière.",
)
PAIR = "The house has not been sold.", "La maison n'a pas été vendue."
PAIR_SCOPES = ("ATTN-N", "CROSS-N", "LN2", "LN3")
TRANSLATION_STATE = "layer=2&scope=RES2&norm=source&special=0&level=words"


PATCH_STATE = "layer=3&scope=FF&pin=row:123"
HEADS_STATE = "view=heads&layer=3"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--translator", metavar="FOLDER", help="a folder that holds opus-mt-en-fr")
    translator = parser.parse_args().translator
    maps = normlens.load("minilm").maps(TEXT, heads=True)
    export.write(maps, IMAGES / "soap.png", layers=4, overwrite=True)
    take_picture(maps, STATE, IMAGES / "viewer.png", height=930)
    take_picture(maps, HEADS_STATE, IMAGES / "viewer-heads.png")
    lens = normlens.load("smollm2")
    why = lens.explain("The keys to the cabinet", target=" are", contrast=" is")
    export.save_figure(why.plot(), IMAGES / "why.png")
    export.save_figure(why.plot_flow(), IMAGES / "why-flow.png")
    pair = normlens.load("minilm").cosine(
        "A man is playing a flute.", "Someone plays an instrument."
    )
    export.save_figure(pair.plot(), IMAGES / "cosine.png")
    pictured = picture_maps()
    export.save_figure(pictured.plot_patches(3, "ATTN-N", target="9,11"), IMAGES / "patches.png")
    take_picture(pictured, PATCH_STATE, IMAGES / "viewer-picture.png", height=890)
    if translator is not None:
        lens = normlens.load(translator, name="opus-mt-en-fr")
        take_picture(lens.maps(*TRANSLATION), TRANSLATION_STATE, TRANSLATED, height=970)
        both = lens.maps(*PAIR, layers=[0, 5], scopes=PAIR_SCOPES)
        export.write(both, IMAGES / "pair.png", overwrite=True)


def picture_maps() -> Maps:
    """Maps of the picture and the random ViT of docs/models.md."""
    transformers.set_seed(0)
    config = transformers.ViTConfig(
        hidden_size=192,
        num_hidden_layers=12,
        num_attention_heads=3,
        intermediate_size=768,
        initializer_range=0.08,
    )
    model = transformers.ViTForImageClassification(config)
    y, x = np.mgrid[0:224, 0:224]
    image = np.stack([120 + y // 4, 170 + y // 6, 230 - y // 8], -1).astype(np.uint8)
    image[y > 145] = (90, 140, 60)
    image[(x - 157) ** 2 + (y - 139) ** 2 < 36**2] = (210, 50, 40)
    maps = normlens.load(model, transformers.ViTImageProcessorPil()).maps(image)
    return named(maps, "random ViT")


def named(maps: Maps, model: str) -> Maps:
    """The same maps under a model's name instead of its folder's."""
    encoder = None if maps.encoder is None else named(maps.encoder, model)
    return replace(maps, provenance={**maps.provenance, "model": model}, encoder=encoder)


def take_picture(maps: Maps, state: str, out: Path, height: int = 850) -> None:
    """Take a picture of the viewer in some state, in few colours, so that its file is small."""
    browser_path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = maps.to_html(Path(folder) / "maps.html")
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": 1360, "height": height}, device_scale_factor=1.25
        )
        page.goto(f"{path.as_uri()}#{state}")
        page.wait_for_selector('.normlens[data-busy="false"]')
        page.screenshot(path=out)
        browser.close()
    colours = Image.Quantize.FASTOCTREE
    Image.open(out).convert("RGB").quantize(256, colours, dither=Image.Dither.NONE).save(
        out, optimize=True
    )


if __name__ == "__main__":
    main()
