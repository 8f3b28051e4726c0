"""Workers that compute shards: in this process, in several, or on a Ray cluster."""
