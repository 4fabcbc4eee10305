"""Traffic as it was, kept to be asked again: who asked what when, what was decided, what it took."""
