"""The tables and figures of Kobayashi et al. 2024, on feed-forward blocks."""
