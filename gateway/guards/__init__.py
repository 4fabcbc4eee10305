"""Guards: scanners, what is done with their findings, and the windows that streams are scanned through."""
