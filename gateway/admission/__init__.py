"""Who is let in to a backend, when, and who is told at once that it is no use to wait."""
