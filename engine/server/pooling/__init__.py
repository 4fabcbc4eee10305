"""The HTTP server of an embedding model or a reranker."""
