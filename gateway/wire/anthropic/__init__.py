"""Anthropic's Messages API, both ways (https://platform.claude.com/docs/en/api/messages).

``request_writer`` and ``answer_reader`` serve the backend, ``request_reader`` and ``answer_writer`` the callers of
``/v1/messages``; inside the gateway everything has OpenAI's shape. ``front`` puts the callers' side together.
"""
