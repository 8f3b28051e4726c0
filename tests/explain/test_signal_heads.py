"""Explanations of classifiers that see or hear: complete, and those of a frozen copy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from frozen_copies import _through_norms, frozen_outputs, times_input
from heads import headed, in_float64
from one_case import in_one_case

import normlens
from normlens.models.parts import ImageEncoder
from normlens.models.tiny import scramble, tiny_config


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def first(model, last):
    return model.classifier(last[0])


def mean_of_all(model, last):
    return model.classifier(last.mean(0))


def first_and_patches(skipped):
    return lambda model, last: model.classifier(torch.cat([last[0], last[skipped:].mean(0)]))


def patches(model, last):
    return model.classifier(last[1:].mean(0))


def patches_before_a_norm(model, last):
    """BEiT's norm stands behind the mean, frozen there."""
    pooled, norm = last[1:].mean(0), model.beit.pooler.layernorm
    deviation = (pooled.detach().var(correction=0) + norm.eps).sqrt()
    return model.classifier((pooled - pooled.mean()) / deviation * norm.weight + norm.bias)


def both_classifiers(model, last):
    return (model.cls_classifier(last[0]) + model.distillation_classifier(last[1])) / 2


def projected(model, last):
    return model.classifier(model.projector(last).mean(0))


def image_model(family: str, **settings):
    return headed(family, "ImageClassification", **settings)


def teacher():
    return made("DeiTForImageClassificationWithTeacher", tiny_config("deit", num_labels=3))


def made(name: str, config):
    kind = getattr(transformers, name)
    model = kind._from_config(config, attn_implementation="eager").eval()
    scramble(model, 3)
    return model.double()


def tower(kind: str):
    """A vision tower with a classifier, whose configuration is that of both towers."""
    vision = tiny_config(f"{kind}_vision_model").to_dict()
    config = transformers.AutoConfig.for_model(kind, vision_config=vision, num_labels=3)
    config.id2label = {0: "dog", 1: "tabby cat", 2: "car"}
    name = {"clip": "CLIP", "siglip": "Siglip"}[kind] + "ForImageClassification"
    return made(name, config)


#: A model with a head, and the head written by hand.
CASES = {
    "vit": (lambda: image_model("vit"), first),
    "vit_msn": (lambda: image_model("vit_msn"), first),
    "deit": (
        lambda: made("DeiTForImageClassification", tiny_config("deit", num_labels=3)),
        first,
    ),
    "deit and teacher": (teacher, both_classifiers),
    "ijepa": (lambda: image_model("ijepa"), mean_of_all),
    "dinov2": (lambda: image_model("dinov2"), first_and_patches(1)),
    "registers": (lambda: image_model("dinov2_with_registers"), first_and_patches(3)),
    "beit": (lambda: image_model("beit"), patches_before_a_norm),
    "beit, first": (lambda: image_model("beit", use_mean_pooling=False), first),
    "clip": (lambda: tower("clip"), patches),
    "siglip": (lambda: tower("siglip"), mean_of_all),
    "wav2vec2": (lambda: headed("wav2vec2", "AudioClassification"), projected),
    "hubert": (lambda: headed("hubert", "AudioClassification"), projected),
}


def given(lens: normlens.Lens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    if isinstance(lens.adapter, ImageEncoder):
        return noise(3, 12, 12), {"pixel_values": noise(3, 12, 12)[None]}
    return noise(270), {"input_values": noise(270)[None]}


@in_one_case("case", CASES)
def test_contributions_are_those_of_a_frozen_copy(case):
    make, head = CASES[case]
    model = make()
    lens = normlens.load(model)
    values, inputs = given(lens)
    with in_float64():
        why = lens.explain(values, target=2, contrast=1)
        logits = model(**inputs).logits[0].detach()
        tokens, outputs = frozen_outputs(model, inputs, "ig", [{}] * lens.n_layers)
        last = outputs[-1][-1]
        last = _through_norms(lens.adapter.end(), last, last.detach())[0]
        followed = head(model, last)
        expected = times_input(followed[2] - followed[1], tokens)
    torch.testing.assert_close(followed.detach(), logits, rtol=0, atol=1e-10)
    assert why.value == pytest.approx(float(logits[2] - logits[1]), rel=1e-12)
    assert why.probability == pytest.approx(float(logits.softmax(-1)[2]))
    np.testing.assert_allclose(why.contributions, expected, rtol=0, atol=1e-9)
    assert abs(why.contributions.sum() + why.remainder - why.value) < 1e-10
    assert why.completeness < 1e-10
