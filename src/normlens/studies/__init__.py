"""Studies of a corpus: the papers, faithfulness, ablation and alignment, and their reports."""
