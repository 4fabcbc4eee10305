"""Scores, data sets and results as Langfuse, Phoenix and LangSmith publish that they take them.

python -m benchmarks.conformance.receivers [install | check]
"""
