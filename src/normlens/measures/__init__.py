"""The papers' measures, each a pure function of maps given as arrays."""
