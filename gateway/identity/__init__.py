"""Who is asking: API keys, and JSON Web Tokens of the issuers that a policy trusts."""
