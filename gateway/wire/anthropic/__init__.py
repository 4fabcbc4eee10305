"""Anthropic's Messages API, both ways (https://platform.claude.com/docs/en/api/messages).

``request_writer`` and ``answer_reader`` serve the backend; ``request_reader``, ``events`` and ``whole`` serve the
callers of ``/v1/messages``, and ``front`` puts them together. Inside the gateway everything has OpenAI's shape.
"""
