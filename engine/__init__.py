"""The bundled inference engine: paged KV cache, continuous batching, an OpenAI-compatible server."""
