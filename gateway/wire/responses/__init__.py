"""OpenAI's Responses API for callers (https://platform.openai.com/docs/api-reference/responses), and so the Open
Responses specification (https://www.openresponses.org/specification).

A request becomes one of ours, which has the shape of a chat completion, and the chunks of its answer become items. So
any model can be asked, and every stage treats the request as it treats a chat's. Towards providers the dialect is not
spoken.
"""
