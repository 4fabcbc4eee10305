"""What quantized weights and KV caches cost in quality: ``python -m engine eval``."""
