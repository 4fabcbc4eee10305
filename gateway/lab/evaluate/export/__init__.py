"""A set and its results where others look at them: in Langfuse, Phoenix, LangSmith, a collector, or a file."""
