"""What callers think of answers: a score, a label and a comment for a request."""
