"""The bundled demo model: its made-up text, its training, and its weights."""
