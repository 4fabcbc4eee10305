"""What a call passes, outermost first: ``record``, ``guard_input``, ``cache``, ``guard_output``, ``truncate``,
``cascade``, ``shadow``; then ``gateway.upstream_loop``. ``gateway.pipeline`` puts them together, and leaves out what a
policy has no use for.

``quota``, ``route``, ``queue``, ``fallback``, ``meter`` and ``trace`` are sections of a receipt, and spans: no stages.
"""
