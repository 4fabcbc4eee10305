"""Verifies each feature of the engine on this device against plain torch: ``python -m engine verify``."""
