"""``tollgate evaluate``: models before a set of cases whose answers are checked."""
