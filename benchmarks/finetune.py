"""Fine-tune the embedded MiniLM on SST-2, for what is measured on a classifier.

    python benchmarks/finetune.py --data path/to/sst2 --out sst2-minilm

Three epochs take two minutes on an H200 and hours on two cores. The folder that it writes is a
checkpoint like any other (`normlens explain --model sst2-minilm "…"`).
"""

from __future__ import annotations

import argparse
import csv
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import BertForSequenceClassification

import normlens

LABELS = ("negative", "positive")


def rows(path: Path) -> list[tuple[str, int]]:
    """Sentences with their labels."""
    with path.open(encoding="utf-8") as file:
        table = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [(row["sentence"].strip(), int(row["label"])) for row in table]


def classifier() -> tuple[Any, Any]:
    """MiniLM with a fresh head for two classes, and its tokenizer."""
    lens = normlens.load("minilm", device="cpu")
    config = lens.model.config
    config.num_labels, config.classifier_dropout = len(LABELS), 0.1
    config.id2label = dict(enumerate(LABELS))
    config.label2id = {label: index for index, label in enumerate(LABELS)}
    model = BertForSequenceClassification(config)
    model.bert.load_state_dict(lens.model.state_dict(), strict=False)
    return model, lens.tokenizer


def padded(tokenizer: Any, texts: list[str], device: str) -> dict[str, Tensor]:
    return tokenizer(texts, padding=True, truncation=True, max_length=96, return_tensors="pt").to(
        device
    )


def accuracy(model: Any, tokenizer: Any, data: list[tuple[str, int]], device: str) -> float:
    model.eval()
    right = 0
    for start in range(0, len(data), 128):
        some = data[start : start + 128]
        with torch.no_grad():
            logits = model(**padded(tokenizer, [text for text, _ in some], device)).logits
        right += int((logits.argmax(-1).cpu() == torch.tensor([y for _, y in some])).sum())
    return right / len(data)


def finetune(
    data: Path, out: Path, epochs: int = 3, batch: int = 64, rate: float = 5e-5, seed: int = 0
) -> float:
    """Train on `data/train.tsv`, save to `out`; the accuracy on `data/dev.tsv`."""
    torch.manual_seed(seed)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train, dev = rows(data / "train.tsv"), rows(data / "dev.tsv")
    model, tokenizer = classifier()
    model.to(device)
    steps = epochs * -(-len(train) // batch)
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    warmup = max(1, steps // 20)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min((step + 1) / warmup, (steps - step) / steps)
    )
    chance = torch.Generator().manual_seed(seed)
    start = time.perf_counter()
    for epoch in range(epochs):
        model.train()
        total = 0.0
        for places in torch.randperm(len(train), generator=chance).split(batch):
            some = [train[place] for place in places.tolist()]
            labels = torch.tensor([label for _, label in some], device=device)
            inputs = padded(tokenizer, [text for text, _ in some], device)
            loss = model(**inputs, labels=labels).loss
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            total += float(loss.detach()) * len(some)
        spent = time.perf_counter() - start
        right = accuracy(model, tokenizer, dev, device)
        print(f"epoch {epoch + 1}: loss {total / len(train):.4f}, dev {right:.2%}, {spent:.0f} s")
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    return right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder with train.tsv, dev.tsv")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=3)
    given = parser.parse_args()
    print(f"accuracy {finetune(given.data, given.out, given.epochs):.4f}")


if __name__ == "__main__":
    main()
