"""What each component of a model is worth: interventions in the real model, and its loss."""
