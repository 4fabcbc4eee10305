"""Token quotas and budgets: estimate, reserve before, settle after."""
