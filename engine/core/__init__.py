"""What to compute next, decided in plain Python: no torch here, so it can be tested without a model."""
