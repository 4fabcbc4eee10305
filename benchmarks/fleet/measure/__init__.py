"""What a fleet's parts cost on this machine, by processor time: the figures of ``benchmarks/fleet/costs.py``, anew."""
