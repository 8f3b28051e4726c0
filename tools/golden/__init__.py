"""The golden set: what must not change while the package is rebuilt, made once and compared."""
