"""State that workers and replicas share: in this process's memory, or in Redis."""
