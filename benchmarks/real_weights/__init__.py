"""Whether the engine is right on real weights: ``python -m benchmarks.real_weights --help``."""
