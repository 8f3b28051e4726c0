"""One call of a lens: batches through the model and the algebra, checked and packed up."""
