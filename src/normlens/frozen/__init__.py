"""The frozen layer, which every analysis stands on, and fast ways to take norms of its parts."""
