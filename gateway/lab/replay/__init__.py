"""What a policy would have done with recorded traffic: the gateway's own pipeline, in simulated time."""
