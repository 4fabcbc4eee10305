"""Prefill and decode apart: KV blocks of prompts that one engine computes and another goes on from. No torch."""
