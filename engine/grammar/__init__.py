"""Constrained decoding with llguidance: what a grammar means (``language``), and which tokens it allows (``masks``)."""
