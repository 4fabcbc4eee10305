"""Other processes: children that are started again, that end with us, that compute for us, and what they inherit."""
