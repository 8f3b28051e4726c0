"""One call of a lens: batches, one run, collected and checked results, packed as maps."""
