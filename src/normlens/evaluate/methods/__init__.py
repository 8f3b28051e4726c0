"""Attribution methods, one module each, with one contract: questions in, a score per token out."""
