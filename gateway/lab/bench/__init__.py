"""``tollgate bench``: a load client for model servers, and its report. docs/lab.md defines what it measures."""
