"""KV blocks beyond the device: which are in host memory and on disk, and which requests wait for them. No torch."""
