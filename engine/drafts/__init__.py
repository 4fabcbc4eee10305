"""Training of draft heads: ``python -m engine train-draft``."""
