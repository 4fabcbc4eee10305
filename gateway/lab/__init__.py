"""What operators ask a gateway and its policy before they change them; serving imports nothing of it."""
