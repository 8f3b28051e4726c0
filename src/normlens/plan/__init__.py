"""Costs and memory of an analysis, and the choices that follow from them."""
