"""The worked example of docs/reproduce.md, from folders that `normlens reproduce` has made.

The page says with which commands. Its tables and pictures are taken from those folders:

    python benchmarks/papers.py --docs minilm=out-minilm smollm2=out-smollm2 …
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import pandas as pd

from normlens.scopes import layers_in_words
from normlens.studies.papers.related_pairs import ALL, TYPES
from normlens.studies.reports import words

PAGE = Path(__file__).parents[1] / "docs" / "reproduce.md"
IMAGES = PAGE.parent / "images" / "papers"
BEGIN, END = (
    "<!-- results: written by `python benchmarks/papers.py --docs` -->",
    "<!-- /results -->",
)
PICTURES = ("similarity-layers", "relations-ff")
RELATIONS = {
    "same_word": "word-split",
    "same_entity": "named entity",
    "entity_across_words": "named entity, across words",
    "same_type": "same subword elsewhere",
    "adjacent": "adjacent",
}


class Results:
    """One model's folder."""

    def __init__(self, label: str, folder: Path):
        self.label, self.folder = label, folder
        found = json.loads((folder / "results.json").read_text())
        self.runs = found["runs"]
        self.data = list(dict.fromkeys(run["data"] for run in self.runs))

    def path(self, kind: str, name: str, data: str, ending: str) -> Path:
        suffix = f"-{data}" if len(self.data) > 1 else ""
        return self.folder / kind / f"{name}{suffix}.{ending}"

    def table(self, name: str, data: str) -> pd.DataFrame | None:
        path = self.path("tables", name, data, "csv")
        return pd.read_csv(path).rename(columns={words.LAYER: "layer"}) if path.is_file() else None


def markdown(frame: pd.DataFrame) -> str:
    lines = ["| " + " | ".join(map(str, frame.columns)) + " |", "|---" * len(frame.columns) + "|"]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in frame.to_numpy()]
    return "\n".join(lines)


def number(value: float) -> str:
    return "–" if value != value else words.fixed(value)


def table_1(models: list[Results]) -> str:
    rows = []
    for model in models:
        for data in model.data:
            table = model.table("similarity", data)
            # A layer with a single normalisation counts it as the first.
            names = ["LN1" if name == "LN" else name for name in table["component"]]
            found = dict(zip(names, map(number, table["rho"]), strict=True))
            square = model.table("similarity-matrix", data).set_index("scope")
            chain = [scope for scope in square.columns if scope.endswith("-N")]
            whole = number(square.loc["ATTNRES-N", chain[-1]])
            rows.append({"model": model.label, "data": data, **found, "ATTNRES ~ layer": whole})
    order = ["model", "data", "ATTN", "RES1", "LN1", "FF", "RES2", "LN2", "ATTNRES ~ layer"]
    return markdown(pd.DataFrame(rows)[order].fillna("–"))


def significance(models: list[Results]) -> str:
    """Layers by all occurrences, and by the paper's procedure."""
    rows = []
    for model in models:
        for data in model.data:
            for name, label in RELATIONS.items():
                table = model.table(f"relations-ff-{name}", data)
                if table is None:
                    continue
                row = {"model": model.label, "data": data, "pairs": label}
                for procedure, whose in ((ALL, ""), (TYPES, "paper: ")):
                    own = table[table["procedure"] == procedure]
                    for direction, sign in (("more", 1), ("less", -1)):
                        chosen = own["significant"] & (own["difference"] * sign > 0)
                        row[f"{whose}{direction} in layers (from 1)"] = ranges(
                            own.loc[chosen, "layer"]
                        )
                    low, high = number(own["g"].min()), number(own["g"].max())
                    row[f"{whose}g from … to …"] = f"{low} … {high}" if len(own) else "–"
                rows.append(row)
    return markdown(pd.DataFrame(rows))


def ranges(layers: pd.Series) -> str:
    return layers_in_words(layers.tolist()).partition(" ")[2] if len(layers) else "–"


def special(models: list[Results]) -> str:
    rows = []
    for model in models:
        for data in model.data:
            table = model.table("special-dimensions", data)
            if table is None:
                continue
            table["gain"] = table["rho_without"] - table["rho_with"]
            best = table.loc[table["gain"].idxmax()]
            change = f"{number(best.rho_with)} → {number(best.rho_without)}"
            rows.append(
                {
                    "model": model.label,
                    "data": data,
                    "with": number(table["rho_with"].mean()),
                    "without": number(table["rho_without"].mean()),
                    "largest change (layers from 1)": f"layer {best.layer:.0f}: {change}",
                }
            )
    return markdown(pd.DataFrame(rows))


def mixing(models: list[Results]) -> str:
    rows = []
    for model in models:
        for data in model.data:
            table = model.table("mixing", data)
            if table is None:
                continue
            whole = table.iloc[-1]
            means = table.set_index("method")["mean"]
            wanted = ["ATTN-W", "ATTN-N", "ATTNRES-W", "ATTNRES-N", "ATTNRESLN-N"]
            found = {name: number(means.get(name, float("nan"))) for name in wanted}
            rows.append(
                {"model": model.label, "data": data, **found, "whole layer": number(whole["mean"])}
            )
    return markdown(pd.DataFrame(rows))


def pictures(models: list[Results]) -> str:
    IMAGES.mkdir(parents=True, exist_ok=True)
    for old in IMAGES.glob("*.svg"):
        old.unlink()
    lines = []
    for model in models:
        data = model.data[0]
        lines += [f"#### {model.label} on {data}", ""]
        for name in PICTURES:
            source = model.path("figures", name, data, "svg")
            if source.is_file():
                target = IMAGES / f"{model.label.lower()}-{name}.svg"
                shutil.copyfile(source, target)
                lines += [f"![{name.replace('-', ' ')}](images/papers/{target.name})", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", metavar="LABEL=FOLDER")
    parser.add_argument("--docs", action="store_true", help="write into docs/reproduce.md")
    options = parser.parse_args()
    models = [
        Results(label, Path(folder))
        for label, _, folder in (given.partition("=") for given in options.folders)
    ]
    parts = [
        "### Table 1: similarity before and after each component\n\n" + table_1(models),
        "### Word-split and named-entity pairs (Figure 7)\n\n" + significance(models),
        "### Special dimensions (section 6.2): similarity to the map before FF\n\n"
        + special(models),
        "### Mean mixing ratio (%)\n\n" + mixing(models),
    ]
    if options.docs:
        parts.append("### Figures 5 and 7\n\n" + pictures(models))
    text = "\n\n".join(parts)
    if options.docs:
        page = PAGE.read_text()
        head, rest = page.split(BEGIN)
        PAGE.write_text(f"{head}{BEGIN}\n\n{text.rstrip()}\n\n{END}{rest.split(END)[1]}")
    print(text)


if __name__ == "__main__":
    main()
