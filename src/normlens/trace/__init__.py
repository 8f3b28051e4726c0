"""One run of the unmodified model: hooks, attention weights, checks, locks."""
