"""The page of a faithfulness run, from its tables alone."""
