"""Sends a request that looks easy to a small model first, and to a larger one if the answer is not good enough."""

from __future__ import annotations

from gateway.cascade.cascade import ComplexityScorer, run_cascade
from gateway.types import Call, Chunks, Handler, Stage


def cascade(scorer: ComplexityScorer) -> Stage:
    """``scorer`` says how complex a request is; models without a cascade pass untouched."""

    def stage(following: Handler) -> Handler:
        def handle(call: Call) -> Chunks:
            steps = call.policy.models[call.model].cascade
            return run_cascade(call, steps, scorer, following) if steps else following(call)

        return handle

    return stage
