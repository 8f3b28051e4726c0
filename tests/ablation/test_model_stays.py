"""A model is bit for bit as before, whichever way an ablation ends."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from ablation_examples import KINDS, lens_on, questions, texts

from normlens.lens import Lens
from normlens.studies.ablation.interventions import gather
from normlens.studies.ablation.losses import choose_loss
from normlens.studies.ablation.measure import Runner
from normlens.studies.ablation.plan import Plan

HOOKS = [
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_always_called",
]


def state(lens: Lens) -> dict[str, Any]:
    """All that could have been changed, by its bits and its identity."""
    whole = lens.adapter.whole
    tensors = {**dict(whole.named_parameters()), **dict(whole.named_buffers())}
    return {
        "bits": {k: t.detach().reshape(-1).view(torch.uint8).tolist() for k, t in tensors.items()},
        "identity": {k: (id(t), t.data_ptr(), t._version) for k, t in tensors.items()},
        "gradients": {k: (t.requires_grad, t.grad) for k, t in tensors.items()},
        "hooks": {n: [list(vars(m)[h]) for h in HOOKS] for n, m in whole.named_modules()},
        "attributes": {n: set(vars(m)) for n, m in whole.named_modules()},
        "training": {n: m.training for n, m in whole.named_modules()},
        "config": whole.config.to_dict(),
        "attention": whole.config._attn_implementation,
    }


def output(lens: Lens, ids: list[int]) -> torch.Tensor:
    whole = lens.adapter.whole
    modes = {m: m.training for m in whole.modules()}
    whole.eval()
    with torch.no_grad():
        scores = whole(input_ids=torch.tensor([ids])).logits
    for module, mode in modes.items():
        module.training = mode
    return scores


def every_ablation(lens: Lens) -> Runner:
    statistics = gather(lens, texts(lens, seed=3), batch_size=2)
    ablations = Plan(lens.layers, "tiny").ablations(draws=1)
    return Runner(lens, choose_loss(lens), ablations, statistics=statistics)


def unsettled(lens: Lens) -> None:
    """A model in training mode, with frozen weights and a hook of its user's."""
    whole = lens.adapter.whole
    whole.train()
    next(iter(lens.adapter.blocks())).eval()
    first = next(whole.parameters())
    first.requires_grad_(False)
    next(iter(lens.adapter.blocks())).register_forward_hook(lambda *_: None)


@pytest.mark.parametrize(("family", "task"), KINDS)
def test_after_every_ablation_the_model_is_as_before(family, task):
    lens = lens_on(family, task)
    unsettled(lens)
    before, said = state(lens), output(lens, [7, 8, 9, 10])
    runner = every_ablation(lens)
    runner.run(questions(runner.loss, texts(lens)))
    assert state(lens) == before
    assert torch.equal(output(lens, [7, 8, 9, 10]), said)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("broken")])
@pytest.mark.parametrize("place", ["layer", "head", "embeddings"])
def test_after_an_error_inside_the_model_it_is_as_before(error, place):
    lens = lens_on("gpt2", "CausalLM")
    runner = every_ablation(lens)
    asked = questions(runner.loss, texts(lens))
    whole: Any = lens.adapter.whole
    module = {"layer": whole.transformer.h[1].mlp, "head": whole.lm_head}.get(
        place, whole.transformer.wte
    )
    calls = 0

    def break_down(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > 20:
            raise error

    handle = module.register_forward_pre_hook(break_down)
    before = state(lens)
    with pytest.raises(type(error)):
        runner.run(asked)
    assert state(lens) == before
    handle.remove()
    assert all(outcome.loss > 0 for outcome in runner.run(asked)[0])
