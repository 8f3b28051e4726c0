"""What the first pass gathers, whatever the batches; and the file that holds it."""

from __future__ import annotations

import pytest
import torch
from ablation_examples import lens_on, texts
from safetensors.torch import load_file, save_file

from normlens.errors import InputError, OutputError
from normlens.studies.ablation.interventions import Statistics, digest_of, gather
from normlens.studies.ablation.losses import choose_loss
from normlens.studies.ablation.measure import Runner
from normlens.studies.ablation.options import Ablation


@pytest.mark.parametrize("family", ["bert", "gpt2", "gemma2"])
def test_batches_and_padding_do_not_matter(family):
    lens = lens_on(family, "MaskedLM" if family == "bert" else "CausalLM")
    encoded = texts(lens, (7, 2, 9, 4, 5))
    alone = gather(lens, encoded, reservoir=8, batch_size=1)
    together = gather(lens, encoded, reservoir=8, batch_size=5)
    assert alone.means.keys() == together.means.keys()
    for where, mean in alone.means.items():
        torch.testing.assert_close(together.means[where], mean, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(
            together.samples[where], alone.samples[where], rtol=1e-4, atol=1e-5
        )
        assert alone.samples[where].shape == (8, 16)
    for where, sigma in alone.sigmas.items():
        torch.testing.assert_close(together.sigmas[where], sigma, rtol=1e-5, atol=0)


def test_a_file_gives_the_same_statistics_back(tmp_path):
    lens = lens_on("bert", "MaskedLM", torch.bfloat16)
    statistics = gather(lens, texts(lens), reservoir=4)
    path = tmp_path / "statistics.safetensors"
    statistics.save(path)
    again = Statistics.load(path, digest_of(path))
    again.save(tmp_path / "again.safetensors")
    assert digest_of(tmp_path / "again.safetensors") == digest_of(path)
    assert again.sigmas == statistics.sigmas
    assert again.samples[0, "FF"].dtype == torch.bfloat16
    for where, mean in statistics.means.items():
        assert torch.equal(again.means[where], mean)


def test_no_changed_byte_is_read(tmp_path):
    means, samples = {(0, "FF"): torch.arange(3.0).double()}, {(0, "FF"): torch.ones(2, 3)}
    statistics = Statistics(means, {(0, "LN1"): torch.ones(1).double()}, samples)
    path = tmp_path / "statistics.safetensors"
    statistics.save(path)
    content, digest = path.read_bytes(), digest_of(path)
    for place, byte in enumerate(content):
        flipped = bytes([byte ^ (1 << place % 8)])
        path.write_bytes(content[:place] + flipped + content[place + 1 :])
        with pytest.raises(InputError):
            Statistics.load(path, digest)


def test_files_that_are_none_are_refused(tmp_path):
    lens = lens_on("gpt2", "CausalLM")
    path = tmp_path / "statistics.safetensors"
    gather(lens, texts(lens), reservoir=4).save(path)
    save_file(load_file(path), path)
    with pytest.raises(InputError):
        Statistics.load(path)
    path.write_text("nothing")
    with pytest.raises(InputError):
        Statistics.load(path)
    with pytest.raises(InputError):
        Statistics.load(tmp_path / "missing")
    with pytest.raises(OutputError):
        gather(lens, texts(lens), reservoir=4).save(tmp_path / "missing" / "file")


def test_ablations_that_need_statistics_say_so_before_anything_runs():
    lens = lens_on("gpt2", "CausalLM")
    loss = choose_loss(lens)
    mean = Ablation("FF", "mean", (0,))
    with pytest.raises(InputError):
        Runner(lens, loss, [mean])
    small = lens_on("gpt2", "CausalLM", n_layer=1)
    statistics = gather(small, texts(small))
    Runner(lens, loss, [mean], statistics=statistics)
    with pytest.raises(InputError):
        Runner(lens, loss, [Ablation("FF", "mean", (1,))], statistics=statistics)
