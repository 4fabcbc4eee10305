"""The LLM API gateway: everything between a client and a model server."""
