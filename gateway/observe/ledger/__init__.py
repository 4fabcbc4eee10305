"""The ledger: what requests cost. Who writes it, and what is read of it."""
