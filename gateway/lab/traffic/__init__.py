"""Traffic that was recorded somewhere, in whatever form, as ``RecordedRequest``."""
