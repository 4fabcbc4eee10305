"""What acts: a policy's guards at work on texts, within their time, and what becomes of a request."""
