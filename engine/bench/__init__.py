"""Benchmarks the engine on this device beside other engines that are installed: ``python -m engine bench``."""
