"""How fast the engine is on this device, beside others' that are installed: ``python -m engine bench``."""
