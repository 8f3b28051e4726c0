"""The tables and figures of Kobayashi et al. 2021, on residual connections and norms."""
