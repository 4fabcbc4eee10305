"""How long Python's engine may take to match a regular expression."""
