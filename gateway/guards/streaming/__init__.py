"""Guards on answers: streams that are scanned as they grow, and held, released or cut."""
