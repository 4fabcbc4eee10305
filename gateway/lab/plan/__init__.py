"""``tollgate plan``: which machines a model needs for given traffic, and what they cost."""
