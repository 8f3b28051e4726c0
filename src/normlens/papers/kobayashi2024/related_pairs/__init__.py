"""Related pairs of tokens beside other pairs: samples, procedures, sentences and pictures."""
