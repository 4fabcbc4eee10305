"""What the schema cannot check of a policy: one table of rules, by severity (``gateway.policy.rules.table``)."""
