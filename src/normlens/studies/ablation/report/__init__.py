"""The page of an ablation, made of its two runs' tables alone."""
