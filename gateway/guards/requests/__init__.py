"""What guards make of a request: refused, changed, marked, kept here, or answered."""
