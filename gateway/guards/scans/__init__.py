"""Texts before one guard: on their way through its checks, at once or after the answer, and what is told of it."""
