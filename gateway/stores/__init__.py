"""Where workers and replicas share state: this process's memory, or Redis."""
