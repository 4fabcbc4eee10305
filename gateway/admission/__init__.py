"""Admission to a backend: concurrency limits, fair queues, predicted waits, load shedding."""
