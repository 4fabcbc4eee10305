"""LoRA adapters as models of their tenants: checked, kept, and loaded where a request needs them."""
