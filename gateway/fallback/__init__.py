"""What is done when a backend fails: retries, circuit breakers, other candidates, continuation of answers."""
