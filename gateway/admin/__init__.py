"""``/admin``: the operators' page, and the API behind it. It asks the gateway's parts; none of them knows it."""
