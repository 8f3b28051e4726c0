"""Faithfulness: whether attributions are true of the model, measured by changing the text."""
