"""What one policy builds, and the change from one policy to the next while requests are in flight."""
