"""The HTTP face: OpenAI's API over the engine's client. No torch."""
