"""Running an unmodified model once, and checking that it is what its adapter says."""
