"""The demonstration: real models on a few sentences."""
