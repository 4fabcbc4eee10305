"""Several models behind one port: each in processes of its own, loaded when somebody asks, in a budget of memory."""
