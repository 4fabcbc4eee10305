"""Whether each of the engine's features says on this device what plain torch says: ``python -m engine verify``."""
