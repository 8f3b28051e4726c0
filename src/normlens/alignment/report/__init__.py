"""The report of an alignment with gold links, from its tables; no model is needed."""
