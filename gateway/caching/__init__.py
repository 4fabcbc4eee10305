"""Answers that are given again: exact and semantic caches."""
