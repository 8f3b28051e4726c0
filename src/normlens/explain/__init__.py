"""Explanations: any score of a model, carried back through its frozen layers to its tokens."""
