"""Configurations of other gateways as a policy folder, with a report of what did not carry over."""
