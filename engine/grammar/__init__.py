"""Structured output with llguidance: compiling grammars (``language``), and masks of the allowed tokens (``masks``)."""
