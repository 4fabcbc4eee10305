"""Scores of texts that need no model server: linear models in plain Python, and how long texts are cut for them."""
