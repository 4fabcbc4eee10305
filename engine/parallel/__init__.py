"""How a model is divided over processes (ranks): what each has of it, and how they exchange results."""
