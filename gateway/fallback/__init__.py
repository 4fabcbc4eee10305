"""What is done when a backend fails: retries, breakers, other candidates, and answers gone on with elsewhere."""
