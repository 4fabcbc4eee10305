"""Databases that hold the ledger and other tables: SQLite files, or a PostgreSQL server for several replicas."""
