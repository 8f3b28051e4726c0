"""Engines that compute shards: this process, worker processes, or a Ray cluster."""
