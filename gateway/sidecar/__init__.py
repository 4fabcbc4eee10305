"""The process that runs the small models: client, protocol and worker."""
