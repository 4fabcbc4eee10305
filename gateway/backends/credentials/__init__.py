"""How the gateway proves to a cloud who it is, where a key in a header is not enough."""
