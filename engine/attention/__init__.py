"""Attention over the paged cache: one backend for each way of laying it out, chosen once."""
