"""HTTP/1.1 towards clients: uvicorn's connections, with bounds on time, bytes and numbers."""
