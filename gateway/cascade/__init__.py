"""Small models first: how hard a question looks, and whether an answer is good enough to keep."""
