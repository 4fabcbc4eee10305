"""Attention over the paged KV cache: a backend for each layout, chosen once at load."""
