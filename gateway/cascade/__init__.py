"""Small models first: how complex a request looks, and whether an answer is good enough to keep."""
