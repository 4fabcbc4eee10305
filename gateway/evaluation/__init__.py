"""Answers that a judge model scores after they were given: how good models are on the traffic that there is."""
