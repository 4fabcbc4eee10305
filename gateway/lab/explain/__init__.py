"""What would happen to a request now, decided by the gateway's own parts; nothing is sent, nothing is counted."""
