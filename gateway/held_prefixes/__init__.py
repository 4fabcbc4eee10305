"""Which prompts' beginnings model servers hold in their KV caches, by what they tell of it."""
