"""Inputs: texts, words, pictures, sounds and pairs of texts as the sequences that a model takes."""
