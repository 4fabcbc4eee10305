"""Writes quantized checkpoints: ``python -m engine quantize``."""
