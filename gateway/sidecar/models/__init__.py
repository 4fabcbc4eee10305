"""The models themselves. Nothing else in the gateway loads torch or its like."""
