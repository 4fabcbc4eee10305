"""The scheduler on a clock of its own: what a machine would do with given arrivals. ``python -m engine simulate``."""
