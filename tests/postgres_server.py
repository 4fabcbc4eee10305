"""A real PostgreSQL server for tests, on a socket in a folder of its own, that can be killed and started again."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

from gateway.databases.database import DatabaseError
from gateway.databases.postgres import PostgresDatabase
from tests.ports import free_port

PROGRAMS = "/usr/lib/postgresql"
"""Where Debian keeps each version's programs, which are not on PATH."""


def postgres_programs() -> Path | None:
    """The folder of the newest version's ``initdb`` and ``postgres``."""
    if found := shutil.which("initdb"):
        return Path(os.path.realpath(found)).parent
    folders = [path.parent for path in Path(PROGRAMS).glob("*/bin/initdb")]
    return max(folders, key=lambda folder: int(folder.parent.name), default=None)


class PostgresServer:
    """Made anew in a folder directly under the temporary one: a socket's path may have about a hundred characters.

    The server does not run as root: there it runs as ``nobody``.
    """

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self._folder = Path(tempfile.mkdtemp(prefix="tg-pg-"))
        self._as_nobody = os.geteuid() == 0
        if self._as_nobody:
            nobody = pwd.getpwnam("nobody")
            os.chown(self._folder, nobody.pw_uid, nobody.pw_gid)
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._databases = 0
        data = ("--pgdata", str(self._folder / "data"), "--username", "tollgate", "--auth", "trust")
        locale = ("--locale", "C.UTF-8", "--encoding", "UTF8", "--no-sync", "--no-instructions")
        self._run("initdb", *data, *locale)

    def start(self) -> None:
        settings = {
            "fsync": "off",
            "shared_buffers": "64MB",
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self._folder),
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={value}")]
        command = self._command("postgres", "-D", str(self._folder / "data"), *options)
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            try:
                PostgresDatabase(self.url("postgres")).connect().close()
                return
            except DatabaseError:
                time.sleep(0.05)
        raise RuntimeError("postgres did not come up within 300 s")

    def url(self, database: str) -> str:
        return f"postgresql://tollgate@/{database}?host={quote(str(self._folder), safe='')}&port={self.port}"

    def tcp_url(self, database: str, user: str = "tollgate") -> str:
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """Its name; it is empty."""
        self._databases += 1
        name = f"test_{self._databases}"
        self.execute("postgres", f"CREATE DATABASE {name}")
        return name

    def execute(self, database: str, statement: str) -> list[dict[str, object]]:
        connection = PostgresDatabase(self.url(database)).connect()
        try:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends all sessions at once; SIGQUIT is a crash."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait(300)
            self.process = None

    def remove(self) -> None:
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(self._command(program, *arguments), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stderr}")

    def _command(self, program: str, *arguments: str) -> list[str]:
        command = [str(self._programs / program), *arguments]
        nobody = ("setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--no-new-privs", "--")
        return [*nobody, *command] if self._as_nobody else command
