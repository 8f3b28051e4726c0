"""Protocols: what a model's answer loses when a text loses the tokens that scores point at."""
