"""Scripted model providers that answer as the published APIs do, for suites and tests to judge the gateway against.

What they say follows from the request alone, so that every run is the same (but for ids): text is ``said.TEXT``, or of
a picture its size; a schema is met by its least value; tools are called where the request asks for it. What the real
API refuses, they refuse in its words: fields that it does not know, missing ones, a wrong key. A last message that
begins with ``/`` asks for what no request can (see ``said.Wish`` and ``said.BUSY``).
"""
