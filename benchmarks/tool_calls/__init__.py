"""Tool calls and structured output with real models: ``python -m benchmarks.tool_calls --help``."""
