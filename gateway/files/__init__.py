"""Files that callers upload, and that batches write: what they are called in a database, what they hold elsewhere."""
