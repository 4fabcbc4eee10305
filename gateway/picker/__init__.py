"""Which engine gets a request of another gateway: an endpoint picker of the Gateway API Inference Extension."""
