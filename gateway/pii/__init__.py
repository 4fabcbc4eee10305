"""Personal data: its entities, what can find each, and patterns for those with a fixed format."""
