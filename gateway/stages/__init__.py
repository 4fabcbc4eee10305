"""What a call passes, outermost first: ``record``, ``guard_input``, ``cache``, ``guard_output``, ``truncate``,
``cascade``, ``shadow``; then ``gateway.upstream_loop``. ``gateway.pipeline`` puts them together, and leaves out what a
policy has no use for; without caches and limits on length ``cache`` and ``truncate`` pass a call on.

``quota``, ``route``, ``queue``, ``fallback``, ``backend``, ``meter`` and ``trace`` are sections of a receipt,
and spans: no stages.
"""
