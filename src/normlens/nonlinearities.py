"""Names of the rules for the feed-forward nonlinearity; nothing here needs torch."""

from __future__ import annotations

IG = "ig"
SHAPLEY = "shapley"
#: `normlens.decomposition.rules` and `normlens.decomposition.shapley` compute them.
RULES = (IG, "ig-bias", "gradient", SHAPLEY)
