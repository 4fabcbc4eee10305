"""What finds: one scanner for each kind of guard, and how texts are made plain for them."""
