"""Embedding models and rerankers: a text becomes a vector, a pair of texts a score, and nothing is generated."""
