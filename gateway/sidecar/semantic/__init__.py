"""Whether two questions ask the same: rules on their words, and a model on what the rules leave open."""
