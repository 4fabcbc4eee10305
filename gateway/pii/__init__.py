"""Personal data: the kinds there are, who can find each, and patterns for those that have a form."""
