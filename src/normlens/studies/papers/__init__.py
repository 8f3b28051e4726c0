"""The papers' tables and figures: runs, experiments and the report."""
