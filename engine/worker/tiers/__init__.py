"""The content of KV blocks in host memory and in a file, and the copies between them and the device."""
