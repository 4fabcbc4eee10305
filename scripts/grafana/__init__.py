"""Grafana's dashboards, as ``deploy/grafana`` has them."""
