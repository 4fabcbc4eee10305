"""Asks a small model first, where the question looks easy, and a larger one when the answer is not good enough."""

from __future__ import annotations

from gateway.cascade.cascade import Judge, ask
from gateway.types import Call, Chunks, Handler, Stage


def cascade(judge: Judge) -> Stage:
    """``judge`` tells how complex a request is; a model without a cascade passes untouched."""

    def stage(following: Handler) -> Handler:
        def handle(call: Call) -> Chunks:
            steps = call.policy.models[call.model].cascade
            return ask(call, steps, judge, following) if steps else following(call)

        return handle

    return stage
