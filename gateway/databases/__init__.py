"""Databases that hold the ledger: an SQLite file, or a PostgreSQL server for several replicas."""
