"""Data sets: reading, word and entity spans, masking."""
