"""A real Chromium, driven over its DevTools protocol (https://chromedevtools.github.io/devtools-protocol/)."""

from __future__ import annotations

import asyncio
import base64
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, Literal

import aiohttp
import pytest

needs_chromium = pytest.mark.skipif(
    shutil.which("chromium") is None, reason="there is no Chromium on this machine"
)
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-sync", "--no-first-run", "--no-proxy-server"),
    *("--disable-extensions", "--mute-audio", "--remote-debugging-port=0"),
)


class Page:
    """A tab. ``log`` collects what the page writes to its console, and what it does against its own rules."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.log: list[str] = []
        self.requests: list[dict[str, Any]] = []
        """What was loaded, with the bytes that went over the wire (``size``)."""
        self._urls: dict[str, dict[str, Any]] = {}

    async def listen(self) -> None:
        async for message in self._socket:
            told = message.json()
            if "id" in told:
                waiting = self._waiting.pop(told["id"], None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(told)
                continue
            self._note(told.get("method", ""), told.get("params", {}))

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": params})
        told = await asyncio.wait_for(answer, 300)
        if "error" in told:
            raise RuntimeError(f"{method}: {told['error']}")
        return dict(told["result"])

    async def open(self, url: str) -> None:
        await self.ask("Page.navigate", url=url)

    async def run(self, script: str) -> Any:
        """What an expression, or a promise, comes to."""
        told = await self.ask(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        if "exceptionDetails" in told:
            raise RuntimeError(str(told["exceptionDetails"]))
        return told["result"].get("value")

    async def until(self, script: str) -> Any:
        """Wait until an expression is true."""
        async with asyncio.timeout(120):
            while True:
                with suppress(RuntimeError):  # a page that is being left has no variables
                    if found := await self.run(script):
                        return found
                await asyncio.sleep(0.03)

    async def text(self, selector: str = "body") -> str:
        return str(await self.run(f"document.querySelector({selector!r})?.innerText ?? ''"))

    async def type(self, selector: str, text: str) -> None:
        await self.until(f"!!document.querySelector({selector!r})")
        await self.run(f"document.querySelector({selector!r}).focus()")
        await self.ask("Input.insertText", text=text)

    async def click(self, selector: str) -> None:
        await self.until(f"!!document.querySelector({selector!r})")
        await self.run(f"document.querySelector({selector!r}).click()")

    async def press(self, key: str) -> None:
        code = {"Tab": 9, "Enter": 13}[key]
        text = {"Enter": "\r"}.get(key, "")
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if kind == "keyDown" and text else {}
            await self.ask(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **more
            )

    async def look(self, width: int, height: int, *, dark: bool = False, scale: float = 1) -> None:
        await self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 500,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.ask("Emulation.setEmulatedMedia", features=[scheme])

    async def picture(
        self, path: Path, *, kind: Literal["png", "webp"] = "png", whole: bool = False, quality: int = 80
    ) -> None:
        more = {"quality": quality} if kind == "webp" else {}
        told = await self.ask("Page.captureScreenshot", format=kind, captureBeyondViewport=whole, **more)
        path.write_bytes(  # noqa: ASYNC240
            base64.b64decode(told["data"])
        )

    def _note(self, method: str, params: dict[str, Any]) -> None:
        match method:
            case "Runtime.consoleAPICalled" if params["type"] in ("error", "warning", "assert"):
                self.log.append(" ".join(str(one.get("value", one)) for one in params["args"]))
            case "Runtime.exceptionThrown":
                self.log.append(str(params["exceptionDetails"]))
            case "Log.entryAdded" if _is_wrong(params["entry"]):
                entry = params["entry"]
                self.log.append(f"{entry['text']} {entry.get('url', '')}")
            case "Audits.issueAdded" if params["issue"]["code"] != "PerformanceIssue":
                self.log.append(str(params["issue"]))
            case "Network.responseReceived":
                self._urls[params["requestId"]] = {
                    "url": params["response"]["url"],
                    "status": params["response"]["status"],
                }
            case "Network.loadingFinished" if params["requestId"] in self._urls:
                found = self._urls[params["requestId"]]
                self.requests.append({**found, "size": params["encodedDataLength"]})


@asynccontextmanager
async def browsing(folder: Path) -> AsyncIterator[Page]:
    """A browser with a fresh profile in ``folder``."""
    profile = folder / "profile"
    browser = await asyncio.create_subprocess_exec(
        "chromium",
        *_FLAGS,
        f"--user-data-dir={profile}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        port = await _port(profile / "DevToolsActivePort")
        async with aiohttp.ClientSession() as http:
            async with http.get(f"http://127.0.0.1:{port}/json/list") as answer:
                [tab] = [one for one in await answer.json() if one["type"] == "page"]
            async with http.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                listening = asyncio.create_task(page.listen())
                for domain in ("Page", "Runtime", "Log", "Network", "Audits"):
                    await page.ask(f"{domain}.enable")
                yield page
                listening.cancel()
    finally:
        with suppress(ProcessLookupError):
            browser.terminate()
        await browser.wait()


async def _port(file: Path) -> int:
    async with asyncio.timeout(300):
        while True:
            with suppress(OSError, ValueError, IndexError):
                return int(file.read_text().splitlines()[0])  # noqa: ASYNC240
            await asyncio.sleep(0.03)


def _is_wrong(entry: dict[str, Any]) -> bool:
    """An answer with an error's status is the gateway's to give; a file that is not there is not."""
    return entry["level"] in ("error", "warning") and "/admin/api/requests/" not in entry.get("url", "")
