"""Workers that compute blocks: in this process, in several, or on a Ray cluster."""
