"""Runs over a corpus: their manifest and options, their shards, and their tables."""
