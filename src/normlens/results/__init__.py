"""Results: the labelled nouns that a lens gives, and their files."""
