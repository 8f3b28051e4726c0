"""Who computes shards: this process, worker processes, or a Ray cluster."""
