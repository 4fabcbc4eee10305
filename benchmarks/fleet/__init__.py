"""A fleet of clients, gateways, stores and engines, simulated with costs that were measured: ``docs/scale.md``."""
