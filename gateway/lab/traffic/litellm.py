"""LiteLLM's spend logs: its table ``LiteLLM_SpendLogs``, as CSV, JSON or SQL, or what ``/spend/logs`` answers.

Its columns are those of LiteLLM's ``schema.prisma``: ``team_id`` is the tenant, the key goes by its alias, or by the
beginning of its hash. Prompts are there only where it was told to store them (``store_prompts_in_spend_logs``); then
they are hashed. ``completionStartTime`` is the end's where nothing was streamed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gateway.lab.traffic.openai import logged, moment
from gateway.recording.prompt_hashes import key_hash
from gateway.recording.recorded_request import RecordedRequest

_APIS = {
    "completion": "chat",
    "anthropic_messages": "messages",
    "text_completion": "completions",
    "generate_content": "generate",
    "embedding": "embeddings",
    "image_generation": "images",
    "transcription": "audio",
    "speech": "audio",
}


def spend_log(row: Mapping[str, Any], number: int) -> RecordedRequest:
    metadata = _object(row.get("metadata"))
    body = _object(row.get("proxy_server_request"))
    if not body.get("messages") and (messages := _json(row.get("messages"))):
        body = {**body, "messages": messages}
    text = logged({"request": {"model": "", **body}, "response": _object(row.get("response"))}, number)
    began, ended = moment(row["startTime"]), _moment(row.get("endTime"))
    first = _moment(row.get("completionStartTime"))
    duration = None if ended is None else max(0.0, ended - began)
    streamed = first is not None and ended is not None and began <= first < ended
    usage = _object(metadata.get("usage_object"))
    fault = _object(metadata.get("error_information"))
    failed = (row.get("status") or metadata.get("status") or "success") != "success"
    status = _count(fault.get("error_code")) or 500
    refused = status in (401, 403, 429) or "Budget" in str(fault.get("error_class"))
    return RecordedRequest(
        at=began,
        request_id=str(row.get("request_id") or ""),
        tenant=str(row.get("team_id") or metadata.get("user_api_key_team_id") or ""),
        key=str(metadata.get("user_api_key_alias") or str(row.get("api_key") or "")[:12]),
        user=key_hash(str(user)) if (user := row.get("end_user")) else "",
        api=_api(str(row.get("call_type") or "completion")),
        model=str(row.get("model_group") or row.get("model") or ""),
        answered="" if failed else str(row.get("model_group") or row.get("model") or ""),
        backend=str(row.get("custom_llm_provider") or row.get("api_base") or ""),
        target=str(row.get("model") or ""),
        stream=streamed,
        prompt_tokens=_count(row.get("prompt_tokens")),
        max_tokens=text.max_tokens,
        completion_tokens=_count(row.get("completion_tokens")),
        cached_tokens=_count(_object(usage.get("prompt_tokens_details")).get("cached_tokens")),
        reasoning_tokens=_count(_object(usage.get("completion_tokens_details")).get("reasoning_tokens")),
        blocks=text.blocks,
        block_tokens=text.block_tokens,
        prompt_key=text.prompt_key or str(row.get("cache_key") or "").replace("Cache OFF", ""),
        cache="exact" if str(row.get("cache_hit")).lower() == "true" else "",
        outcome=("refused" if refused else "failed") if failed else "completed",
        status=status if failed else 200,
        code=str(fault.get("error_class") or "") if failed else "",
        ttft=first - began if streamed and first is not None else None,
        duration=duration,
        finish_reason=text.finish_reason,
        cost=float(row.get("spend") or 0.0),
        tools=text.tools,
    )


def _api(call: str) -> str:
    """``acompletion`` is ``completion``, awaited."""
    return _APIS.get(call) or _APIS.get(call.removeprefix("a"), call)


def _json(value: Any) -> Any:
    """A column of JSON, which CSV has as text."""
    if isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return None
    return value


def _object(value: Any) -> Mapping[str, Any]:
    read = _json(value)
    return read if isinstance(read, dict) else {}


def _moment(value: Any) -> float | None:
    return None if value in (None, "") else moment(value)


def _count(value: Any) -> int:
    try:
        return int(float(value or 0))
    except (TypeError, ValueError):
        return 0
