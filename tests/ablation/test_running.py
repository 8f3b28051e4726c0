"""Batches: layers that are passed by, padding, and memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ablation_examples import FAMILIES, KINDS, lens_on, questions, texts

from normlens.errors import MemoryLimitError
from normlens.lens import Lens
from normlens.studies.ablation import measure
from normlens.studies.ablation.interventions import gather
from normlens.studies.ablation.losses import Outcome, choose_loss
from normlens.studies.ablation.measure import Runner, layers_to_keep
from normlens.studies.ablation.options import Ablation
from normlens.studies.ablation.plan import Plan


def runner(lens: Lens, **options: Any) -> Runner:
    statistics = gather(lens, texts(lens, seed=3), batch_size=2)
    ablations = Plan(lens.layers, "tiny").ablations(draws=1)
    loss = choose_loss(lens, options.pop("loss", "auto"))
    return Runner(lens, loss, ablations, statistics=statistics, **options)


def all_losses(outcomes: list[list[Outcome]]) -> np.ndarray:
    return np.array([[o.loss for o in row] for row in outcomes])


@pytest.mark.parametrize(("family", "task"), KINDS)
def test_layers_are_passed_by_without_any_change_and_batches_do_not_matter(family, task):
    lens = lens_on(family, task)
    keeping = runner(lens)
    asked = questions(keeping.loss, texts(lens))
    together = keeping.run(asked)
    assert keeping.passes_by is True
    later = sum(ablation.first for ablation in keeping.ablations)
    assert keeping.layers_passed == later > 0
    assert keeping.layers_run == (len(keeping.ablations) + 1) * lens.n_layers - later
    whole = runner(lens, keep=False)
    assert whole.run(asked) == together
    assert whole.layers_passed == 0
    alone = [keeping.run([question]) for question in asked]
    np.testing.assert_allclose(
        all_losses(together), np.hstack([all_losses(one) for one in alone]), rtol=5e-5, atol=5e-6
    )


def test_little_memory_keeps_fewer_layers_and_changes_nothing(monkeypatch):
    lens = lens_on("gpt2", "CausalLM", n_layer=6)
    full = runner(lens)
    asked = questions(full.loss, texts(lens))
    layer = 4 * len(asked) * max(map(len, texts(lens))) * 16  # bytes of one layer's output
    some, none = runner(lens), runner(lens)
    outcomes = [full.run(asked)]
    for each, limit in ((some, 2 * layer), (none, layer - 1)):
        monkeypatch.setattr(measure, "KEPT_LIMIT", limit)
        outcomes.append(each.run(asked))
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert full.layers_run < some.layers_run < none.layers_run
    assert none.layers_passed == 0


def test_layers_are_kept_where_they_serve_most():
    ablations = [Ablation("FF", "zero", (layer,)) for layer in range(8)]
    assert layers_to_keep(ablations, 8, 10, 1000) == [0, 1, 2, 3, 4, 5, 6]
    assert layers_to_keep(ablations, 8, 10, 29) == [0, 3]
    assert layers_to_keep(ablations, 8, 10, 9) == []
    assert layers_to_keep([Ablation("FF", "zero", (0, 5))], 8, 10, 1000) == []


def test_a_model_whose_layers_do_more_than_return_vectors_runs_them_all():
    lens = lens_on("gpt2", "CausalLM")
    blocks: Any = list(lens.adapter.blocks())
    told: list[bool] = []

    def tell(*_: Any) -> None:
        told.append(True)

    def listen(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        heard = bool(told)
        told.clear()
        return output + heard

    blocks[0].mlp.register_forward_hook(tell)
    blocks[1].mlp.register_forward_hook(listen)
    loss, ablations = choose_loss(lens), [Ablation("ATTN", "zero", (1,))]
    asked = questions(loss, texts(lens))
    keeping = Runner(lens, loss, ablations)
    outcomes = keeping.run(asked)
    assert keeping.passes_by is False
    assert outcomes == Runner(lens, loss, ablations, keep=False).run(asked)


def test_a_decoder_without_a_padding_token_classifies_padded_batches():
    lens = lens_on("gpt2", "SequenceClassification")
    lens.adapter.whole.config.pad_token_id = None
    each = runner(lens)
    asked = questions(each.loss, texts(lens))
    together = each.run(asked)
    alone = [each.run([question]) for question in asked]
    np.testing.assert_allclose(
        all_losses(together), np.hstack([all_losses(one) for one in alone]), rtol=1e-5
    )


def test_windows_that_padding_would_spoil_run_one_by_one():
    lens = lens_on("mistral", "CausalLM", torch.float64)
    each = runner(lens, loss="drift")
    encoded = texts(lens, (9, 3, 2, 12))
    asked = [each.loss.question(one, str(number)) for number, one in enumerate(encoded)]
    pairs = [asked[:2], asked[2:]]
    outcomes = each.run(pairs)
    assert np.isfinite(all_losses(outcomes)).all()
    assert all(outcome.cosine is not None for outcome in outcomes[0])
    assert np.allclose([outcome.loss for outcome in outcomes[0]], 0, atol=1e-12)


def test_a_batch_that_runs_out_of_memory_is_halved():
    lens = lens_on("gpt2", "CausalLM")
    each = runner(lens)
    asked = questions(each.loss, texts(lens))
    expected = all_losses(each.run(asked))
    most, sizes = 1, []

    def need_memory(_: Any, args: Any, __: Any = None) -> None:
        sizes.append(len(args[0]))
        if len(args[0]) > most:
            raise torch.OutOfMemoryError("out of memory")

    next(iter(lens.adapter.blocks())).register_forward_pre_hook(need_memory)
    np.testing.assert_allclose(all_losses(each.run(asked)), expected, rtol=1e-5)
    assert sizes[0] == 4
    most = 0
    with pytest.raises(MemoryLimitError):
        each.run(asked)


VARIANTS = [
    ("opt", dict(do_layer_norm_before=False), "RES1 LN1 FF RES2 LN2"),
    ("albert", dict(inner_group_num=2, num_hidden_groups=3), "RES1 LN1 FF RES2 LN2"),
]


@pytest.mark.parametrize(("family", "settings", "components"), VARIANTS)
def test_variants_of_families_pass_layers_by_too(family, settings, components):
    lens = lens_on(family, dict(FAMILIES)[family], **settings)
    keeping = runner(lens)
    assert set(components.split()) <= {ablation.component for ablation in keeping.ablations}
    asked = questions(keeping.loss, texts(lens))
    outcomes = keeping.run(asked)
    assert keeping.passes_by
    assert outcomes == runner(lens, keep=False).run(asked)
    ablated = all_losses(outcomes)
    assert (abs(ablated[1:] - ablated[0]).max(1) > 1e-6).all()


@pytest.mark.parametrize(
    ("family", "task", "component", "kind"),
    [("gpt2", "CausalLM", "RES2", "zero"), ("bert", "MaskedLM", "LN2", "no-affine")],
)
def test_a_component_that_is_not_what_the_adapter_says_is_refused(family, task, component, kind):
    """The model scales what its residual connection or its norm gives."""
    lens = lens_on(family, task)
    block: Any = list(lens.adapter.blocks())[1]
    changed = block if component == "RES2" else block.output.LayerNorm
    changed.register_forward_hook(lambda _, __, output: 0.5 * output)
    loss = choose_loss(lens)
    with pytest.raises(NotImplementedError):
        Runner(lens, loss, [Ablation(component, kind, (1,))]).run(questions(loss, texts(lens)))
