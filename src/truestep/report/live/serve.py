"""The live view in the browser: a small server on this machine, for who has the address.

Owns who may read and what is sent. Reads the run's folder; whatever is asked, nothing is changed.
"""

import contextlib
import hmac
import json
import re
import secrets
import socket
import sys
import threading
import time
import traceback
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from types import TracebackType
from typing import TYPE_CHECKING, Any

from truestep.errors import TruestepError, UsageError, printable
from truestep.report.live.fields import as_fields

if TYPE_CHECKING:
    from truestep.report.live.state import Live

_LOOPBACK = "127.0.0.1"
_LOOK_S = 0.25
"""The folder is looked at no more often than this, however many ask."""
_OWN_FAULT = "truestep: this is a bug in truestep. Please report it with the lines above"
_SINCE = re.compile(r"since=([0-9]{1,18})")
_FILES = {
    "": ("page.html", "text/html; charset=utf-8"),
    "page.css": ("page.css", "text/css; charset=utf-8"),
    "page.js": ("page.js", "text/javascript; charset=utf-8"),
}
_HEADERS = {
    # Only what this server sends itself; nothing inline, nothing from elsewhere, not inside another page.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",  # the address holds the secret
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Server:
    """Serves one run on 127.0.0.1 to those who have its address."""

    def __init__(self, live: "Live", *, port: int = 0) -> None:
        self._live = live
        self._token = secrets.token_urlsafe(24)
        self._lock = threading.Lock()
        self._looked_s = 0.0
        self._sent: tuple[int, bytes] = (-1, b"")
        self._files = {
            name: (resources.files(__package__).joinpath(file).read_bytes(), kind)
            for name, (file, kind) in _FILES.items()
        }
        try:
            self._http = _Http((_LOOPBACK, port), _Handler)
        except OSError as error:
            raise UsageError(
                f"port {port} of {_LOOPBACK} cannot be used ({error.strerror}). "
                f"Remove --port to use a free one."
            ) from error
        self._http.owner = self

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._http.server_address[1])

    @property
    def address(self) -> str:
        """The address to open, with the secret in it."""
        return f"http://{_LOOPBACK}:{self.port}/{self._token}/"

    def serve(self) -> None:
        """Answer until Ctrl-C or `close`."""
        with contextlib.suppress(KeyboardInterrupt):
            self._http.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        """Give the port free; from another thread than the one that serves, call `stop` first."""
        self._http.server_close()

    def stop(self) -> None:
        """Make `serve` return."""
        self._http.shutdown()

    def __enter__(self) -> "Server":
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _value: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def is_ours(self, host: str | None) -> bool:
        """Whether a request was meant for this server.

        A page from elsewhere can let its own name lead to 127.0.0.1; its requests still carry that name.
        """
        return host in (f"{_LOOPBACK}:{self.port}", f"localhost:{self.port}")

    def is_known(self, token: str) -> bool:
        """Whether this is the secret, in a time that does not tell how much of it was right."""
        return hmac.compare_digest(token.encode(), self._token.encode())

    def file(self, name: str) -> tuple[bytes, str] | None:
        """Return a file of the page and its kind."""
        return self._files.get(name)

    def state(self, *, since: int) -> bytes:
        """Return the run as JSON; nothing if it has not changed since that version."""
        with self._lock:
            if time.monotonic() - self._looked_s >= _LOOK_S:
                self._live.poll()
                self._looked_s = time.monotonic()
            version = self._live.version
            if version == since:
                return b""
            if version != self._sent[0]:
                text = json.dumps(as_fields(self._live), allow_nan=False, separators=(",", ":"))
                self._sent = (version, text.encode())
            return self._sent[1]


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    owner: Server
    _said = ""

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """A viewer that went away is no error; a mistake of ours is shown, once however often they ask."""
        error = sys.exception()
        if isinstance(error, OSError):
            return
        is_expected = isinstance(error, TruestepError)
        text = f"truestep: {error}" if is_expected else f"{traceback.format_exc()}{_OWN_FAULT}"
        if text != self._said:
            self._said = text
            sys.stderr.write("".join(f"{printable(line)}\n" for line in text.splitlines()))


class _Handler(BaseHTTPRequestHandler):
    timeout = 10
    server: _Http
    server_version, sys_version = "truestep", ""
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        owner = self.server.owner
        path, _, query = self.path.partition("?")
        token, _, name = path.lstrip("/").partition("/")
        if not (owner.is_ours(self.headers["Host"]) and owner.is_known(token)):
            self._answer(HTTPStatus.FORBIDDEN, b"Open the address that truestep watch printed.\n")
            return
        if name == "state":
            known = _SINCE.fullmatch(query)
            data = owner.state(since=int(known[1]) if known else -1)
            self._answer(
                HTTPStatus.OK if data else HTTPStatus.NO_CONTENT, data, kind="application/json; charset=utf-8"
            )
            return
        file = owner.file(name)
        if file is None:
            self._answer(HTTPStatus.NOT_FOUND, b"There is no such page.\n")
        else:
            self._answer(HTTPStatus.OK, file[0], kind=file[1])

    def do_HEAD(self) -> None:
        self.do_GET()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):  # every other method there is
            return self._refuse
        raise AttributeError(name)

    def _refuse(self) -> None:
        self.close_connection = True  # what was sent along is not read
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED, b"This can only be read.\n")

    def _answer(self, status: HTTPStatus, data: bytes, *, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(status)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        if status is not HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", str(len(data)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            with contextlib.suppress(socket.error):
                self.wfile.write(data)

    def send_error(self, code: int, _message: str | None = None, _explain: str | None = None) -> None:
        """Say what is wrong with a request without repeating any of it."""
        self.command = getattr(self, "command", "") or "GET"
        self.request_version = self.protocol_version  # of what was sent it may not be known: headers still go
        self.close_connection = True
        status = HTTPStatus(code)
        self._answer(status, f"{status.phrase}\n".encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # limits: the base class calls it
        """Say nothing: the terminal shows the address and no more."""
