"""How many engines a cluster needs: an external scaler for KEDA, which sees the demand of each week coming."""
