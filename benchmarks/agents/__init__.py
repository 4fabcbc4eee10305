"""Tasks that agent frameworks do with a model behind the gateway, each with a check in code."""
