"""The process that runs the small models: its client, its protocol, and the worker itself."""
