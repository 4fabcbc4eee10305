"""Where weights come from and how they are read."""
