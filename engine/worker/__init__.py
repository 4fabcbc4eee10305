"""How a plan is computed: torch begins here."""
