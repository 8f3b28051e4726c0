"""Which texts a report shows: from those that part the two best methods most to the opposite."""

from __future__ import annotations

import numpy as np
import pandas as pd

from normlens.evaluate.report.ranking import Ranking

EXAMPLES = 5
SHORT, LONG = 6, 40  # ordinary tokens of a text that is easy to read


def choose_examples(ranking: Ranking, texts: pd.DataFrame) -> list[int]:
    """Choose examples (by index) at even quantiles of the lead of the best method over its rival.

    Texts that are easy to read are preferred. Of equal leads shorter texts come first, then
    earlier ones, so that the choice is the same every time.
    """
    values = ranking.values
    winner, rival = ranking.methods[0], ranking.rival
    lead = values[winner] if rival is None else values[winner] - values[rival]
    sign = -1 if ranking.words.lower_is_better else 1
    tokens = texts.set_index("index")["ordinary"]
    frame = pd.DataFrame({"lead": sign * lead, "tokens": tokens}).dropna()
    readable = frame[frame["tokens"].between(SHORT, LONG)]
    chosen = readable if len(readable) >= EXAMPLES else frame
    ordered = chosen.reset_index(names="index").sort_values(["lead", "tokens", "index"])["index"]
    places = np.linspace(0, len(ordered) - 1, min(EXAMPLES, len(ordered))).round().astype(int)
    return [int(ordered.iloc[place]) for place in reversed(places)]
