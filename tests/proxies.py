"""nginx, Caddy and HAProxy for tests, with the configurations of ``deploy/proxy``, on a port of their own."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.ports import free_port

DEPLOY = Path(__file__).parents[1] / "deploy" / "proxy"
HTTP2_ON = (1, 25, 1)
"""The version of nginx since which ``http2`` is a directive."""
NGINX = """
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/log;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/site.conf;
}}
"""


@asynccontextmanager
async def nginx(program: str, folder: Path, gateway: int, certificate: Path) -> AsyncIterator[str]:
    """Its address; ``gateway`` is the port behind it, ``certificate`` has its key, too."""
    port = free_port()
    site = (DEPLOY / "nginx.conf").read_text()
    site = _changed(site, "127.0.0.1:8000", f"127.0.0.1:{gateway}")
    site = _changed(site, "/etc/nginx/tls/llm.example.com.pem", str(certificate))
    site = _changed(site, "/etc/nginx/tls/llm.example.com.key", str(certificate))
    listen = f"listen 127.0.0.1:{port} ssl"
    if _version(program) < HTTP2_ON:
        site = re.sub(r"http2 on;", "", _changed(site, "listen 443 ssl", f"{listen} http2"))
    else:
        site = _changed(site, "listen 443 ssl", listen)
    (folder / "site.conf").write_text(site)
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder))
    async with _running([program, "-p", str(folder), "-c", str(folder / "nginx.conf")], folder, port):
        yield f"https://127.0.0.1:{port}"


@asynccontextmanager
async def caddy(program: str, folder: Path, gateway: int, certificate: Path) -> AsyncIterator[str]:
    """Its address; ``gateway`` is the port behind it, ``certificate`` has its key, too."""
    port = free_port()
    site = (DEPLOY / "Caddyfile").read_text()
    site = _changed(site, "127.0.0.1:8000", f"127.0.0.1:{gateway}")
    site = _changed(
        site,
        "llm.example.com {",
        f"https://127.0.0.1:{port} {{\n\tbind 127.0.0.1\n\ttls {certificate} {certificate}",
    )
    options = "{\n\tadmin off\n\tauto_https off\n}\n"
    (folder / "Caddyfile").write_text(options + site)
    command = [program, "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]
    async with _running(command, folder, port):
        yield f"https://127.0.0.1:{port}"


@asynccontextmanager
async def haproxy(program: str, folder: Path, gateway: int, certificate: Path) -> AsyncIterator[str]:
    """Its address; ``gateway`` is the port behind it, ``certificate`` has its key, too."""
    port = free_port()
    site = (DEPLOY / "haproxy.cfg").read_text()
    site = _changed(site, "127.0.0.1:8000", f"127.0.0.1:{gateway}")
    site = _changed(site, "bind :443", f"bind 127.0.0.1:{port}")
    site = _changed(site, "/etc/haproxy/tls/llm.example.com.pem", str(certificate))
    (folder / "haproxy.cfg").write_text(site)
    async with _running([program, "-db", "-f", str(folder / "haproxy.cfg")], folder, port):
        yield f"https://127.0.0.1:{port}"


def _changed(text: str, old: str, new: str) -> str:
    assert old in text, f"the configuration has no '{old}' any more"
    return text.replace(old, new)


def _version(program: str) -> tuple[int, ...]:
    told = subprocess.run([program, "-v"], capture_output=True, text=True).stderr
    found = re.search(r"nginx/([\d.]+)", told)
    assert found is not None, told
    return tuple(int(part) for part in found[1].split("."))


@asynccontextmanager
async def _running(command: list[str], folder: Path, port: int) -> AsyncIterator[None]:
    with (folder / "output").open("w") as output:
        home = {"HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
        process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output, env=home)
        try:
            async with asyncio.timeout(300):
                while not await _listens(port):
                    assert process.returncode is None, (folder / "output").read_text()
                    await asyncio.sleep(0.02)
            yield
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


async def _listens(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True
