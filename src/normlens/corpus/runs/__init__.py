"""Runs over a corpus: their manifest and options, their blocks, and their tables."""
