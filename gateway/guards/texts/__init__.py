"""The texts of requests and answers: where they stand, how guards read them, and what takes their place."""
