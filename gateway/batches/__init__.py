"""Batches: files of requests that run on idle capacity, with a state that outlives the processes."""
