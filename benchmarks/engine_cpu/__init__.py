"""The engine on a CPU beside llama.cpp, in one run: ``python -m benchmarks.engine_cpu --help``."""
