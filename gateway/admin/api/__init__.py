"""The admin API: a file for each thing that operators look at or change."""
