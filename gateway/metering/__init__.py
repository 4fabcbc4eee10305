"""Tokens and money: what a request will need, what it used, and what that costs."""
