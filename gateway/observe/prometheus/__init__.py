"""Metrics in Prometheus's form: buffered, bounded, and shared by the workers of one machine."""
