"""What regular expressions can cost: how long Python's engine may take over a text."""
