"""Results: the nouns that a lens returns, their files and exports."""
