"""Protocols: what happens to the model's score when a text loses the tokens that scores point at."""
