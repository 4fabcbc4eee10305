"""Guards at work: scans of requests and texts, and the actions on their findings."""
