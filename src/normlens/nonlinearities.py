"""Names of the rules for the feed-forward nonlinearity; nothing here needs torch."""

from __future__ import annotations

IG = "ig"
SHAPLEY = "shapley"
#: `normlens.decomposition.rules` and `normlens.decomposition.shapley` compute them.
RULES = (IG, "ig-bias", "gradient", SHAPLEY)

#: Why no layers can be composed under that rule.
NOT_LINEAR = (
    "Shapley values are not linear in the parts and cannot be composed; use the rule 'ig', "
    "'ig-bias' or 'gradient'"
)
#: Why a layer with several feed-forward blocks has no maps under that rule.
NOT_BY_SOURCE = (
    "Shapley values are not sampled for layers with several feed-forward blocks or a bottleneck; "
    "use the rule 'ig', 'ig-bias' or 'gradient', or scopes before the first feed-forward block"
)
#: Why a layer of experts has no maps under that rule.
NOT_FOR_EXPERTS = (
    "Shapley values are not sampled for mixtures of experts; use the rule 'ig', 'ig-bias' or "
    "'gradient', or scopes before the feed-forward block"
)
