"""Client libraries of others, as they are, against every kind of backend: one script each, a table of what works.

python -m benchmarks.conformance.clients [install | table | check] [CLIENT ...]
"""
