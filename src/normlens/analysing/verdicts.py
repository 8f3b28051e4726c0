"""How exact an analysis has to be: tolerances, and the errors where they are exceeded."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from normlens.errors import CompletenessError, InputError, ModelLoadError
from normlens.scopes import components_of

#: Largest relative error of parts + bias against the model's own vectors, by the model's dtype.
TOLERANCE = {
    torch.float64: 1e-4,  # many models compute their norms and softmax in float32 regardless
    torch.float32: 1e-4,
    torch.float16: 2e-2,
    torch.bfloat16: 1e-1,
}

#: Largest error of contributions and biases against the model's own score, relative to the largest
#: of the score and its summands.
SCORE_TOLERANCE = {
    torch.float64: 1e-5,
    torch.float32: 1e-5,
    torch.float16: 2e-2,
    torch.bfloat16: 1e-1,
}

#: Largest error of the sum of a kernel's parts, by the precision of its products, and of sampled
#: norms beside their recomputation.
KERNEL_TOLERANCE = {"float32": 1e-4, "tf32": 1e-3, "bfloat16": 5e-3}
SAMPLE_TOLERANCE = {"float32": 1e-3, "tf32": 5e-3, "bfloat16": 3e-2}

#: The largest number of float16, and the largest entry of a map below which its digits are fewer
#: than those of float16, because the smallest steps of this type are 2⁻²⁴.
HALF_RANGE = 2.0**-13, 65504.0


def check_range(peaks: Sequence[tuple[int, str, float]], layer_in_words: str = "layer") -> None:
    """Raise where float16 cannot hold a map; `peaks` are largest entries by layer and name."""
    least, most = HALF_RANGE
    for layer, name, peak in peaks:
        if not (peak == 0 or least <= peak <= most):
            what = f"is beyond its largest number, {most:,.0f}" if peak > most else "is too small"
            raise InputError(
                f"float16 cannot hold the map of {name} in {layer_in_words} {layer}: its largest "
                f"entry, {peak:,.5g}, {what}; leave `map_dtype` out"
            )


def check_completeness(
    errors: Sequence[tuple[int, str, float]], dtype: torch.dtype, layer_in_words: str = "layer"
) -> None:
    """Raise where parts and bias miss the model's vectors; `errors` by layer and scope."""
    tolerance = TOLERANCE[dtype]
    for layer, scope, error in errors:
        if not error <= tolerance:
            raise CompletenessError(
                f"parts and bias miss the real hidden state in {layer_in_words} {layer} at its "
                f"{components_of(scope)[-1]} (scope {scope}): relative error {error:.1e}, "
                f"tolerance {tolerance:.0e} for {str(dtype).removeprefix('torch.')}; "
                "the model may differ from its family, or its values overflow "
                "(normlens help CompletenessError)"
            )


def check_scores(errors: Sequence[float], dtype: torch.dtype, layer_names: Sequence[str]) -> None:
    """Raise where contributions and biases miss a score; `errors` by layer, the last behind all."""
    tolerance = SCORE_TOLERANCE[dtype]
    wrong = [place for place, error in enumerate(errors) if not error <= tolerance]
    if wrong:
        # Scores are carried from the end, so the last layer that misses is where it began.
        place = wrong[-1]
        where = "the head" if place == len(errors) - 1 else layer_names[place]
        raise CompletenessError(
            f"contributions and biases miss the model's own score from {where} on: relative error "
            f"{errors[place]:.1e}, tolerance {tolerance:.0e} for "
            f"{str(dtype).removeprefix('torch.')}; the model may differ from its family "
            "(normlens help CompletenessError)"
        )


def check_kernels(
    errors: Sequence[tuple[int, str, float]], precision: str | None, layer_in_words: str = "layer"
) -> None:
    """Raise where a kernel's parts miss their sum or a sample; `errors` by layer and kind."""
    for layer, kind, error in errors:
        tolerances = KERNEL_TOLERANCE if kind == "sum" else SAMPLE_TOLERANCE
        tolerance = tolerances[str(precision)]
        if not error <= tolerance:
            what = "do not add up" if kind == "sum" else "miss an exact recomputation"
            raise CompletenessError(
                f"the parts behind the feed-forward block of {layer_in_words} {layer} {what}: "
                f"relative error {error:.1e}, tolerance {tolerance:.0e} for {precision}; "
                'take another `precision`, or device="cpu" (normlens help CompletenessError)'
            )


def check_finite(model: nn.Module, name: str) -> None:
    """Refuse weights with NaN or infinity, which give maps without meaning."""
    for key, parameter in model.named_parameters():
        # Quantised tensors have no sums; NaN in one of them is noticed as a lack of completeness.
        plain = type(parameter) in (Tensor, nn.Parameter)
        if not plain or not parameter.is_floating_point() or parameter.is_meta:
            continue
        # The sum is finite unless a value is not; it needs no copy of the weights.
        if not torch.isfinite(parameter.detach().sum(dtype=torch.float64)):
            raise ModelLoadError(
                f"the weights of {name} hold values that are not finite (in {key!r}); "
                "load another checkpoint"
            )
