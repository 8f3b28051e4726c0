"""Runs: what they are made of, how shards are committed, read and checked."""
