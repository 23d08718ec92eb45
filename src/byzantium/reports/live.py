"""The report while jobs run: a server for this machine alone, which the page asks for new data."""

from __future__ import annotations

import gzip
import json
import logging
import socketserver
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from byzantium.reports import text_tables
from byzantium.reports.contents import contents
from byzantium.reports.report import page
from byzantium.runs import Job, Result, Run, Snapshot, described
from byzantium.tables import ResultTable

logger = logging.getLogger("byzantium")

HOST = "127.0.0.1"
# The names by which a browser on this machine may ask. With any other, somebody else's name leads
# here (DNS rebinding), and somebody else's page would read the results.
NAMES = (HOST, "localhost")
# How many requests are answered at a time; further ones are dropped.
MOST_REQUESTS = 16
# The folder is read at most once in so many seconds, and for at most a quarter of the time.
PAUSE, SHARE = 1.0, 0.25

#: The artifacts and the tables of runs of a folder.
Tables = tuple[Sequence[ResultTable], Sequence[ResultTable]]


class State(NamedTuple):
    """What the page shows at a moment.

    - `version`: another one if anything is different.
    - `values`: the data of the page.
    - `data`: these as JSON, compressed.
    """

    version: str
    values: dict[str, Any]
    data: bytes


class LiveReport:
    """The report of a folder of results that grows.

    - `read`: gives the artifacts and the tables of runs of a folder.
    - `jobs`: the jobs whose progress is shown; by default all that are in the folder, and those of
      its artifacts.

    >>> report = LiveReport(Snapshot("nowhere"), lambda store: ([], []), [Run()])
    >>> report.state().values["live"]["total"]
    1
    """

    def __init__(
        self, store: Snapshot, read: Callable[[Snapshot], Tables], jobs: Sequence[Job] = ()
    ) -> None:
        self.store, self.read, self.jobs = store, read, list(dict.fromkeys(jobs))
        self._lock = threading.Lock()
        self._next = 0.0
        self._seen: list[tuple[Any, ...]] | None = None
        self._state = State("", {}, b"")
        self._number = 0

    def state(self) -> State:
        """The present state; the folder is read again if it was not read just before."""
        with self._lock:
            if time.monotonic() >= self._next:
                start = time.monotonic()
                self._update()
                now = time.monotonic()
                self._next = now + max(PAUSE, (now - start) / SHARE)
            return self._state

    def _update(self) -> None:
        store = self.store = self.store.renewed()
        planned = store.results(self.jobs)
        seen = [(r.job.identity, r.status, len(r.metrics)) for r in (*store, *planned)]
        if seen == self._seen:
            return
        artifacts, tables = self.read(store)
        values = contents(store, artifacts, tables)
        results = {r.job: r for r in (*text_tables.results(artifacts), *store)}
        self._number += 1
        # A server that is started again has other versions, too.
        version = f'"{time.time_ns():x}-{self._number}"'
        values["live"] = {"version": version, **progress(planned or list(results.values()))}
        text = json.dumps(values, separators=(",", ":"), allow_nan=False)
        self._state = State(version, values, gzip.compress(text.encode(), 5))
        self._seen = seen


def progress(results: Sequence[Result]) -> dict[str, Any]:
    """How far jobs are, as values for JSON.

    >>> from pathlib import Path
    >>> half = Result(Run(rounds=60), Path("a"), "running", [{"round": 30}], {})
    >>> progress([half])["share"]
    0.5
    """
    running = [
        {
            "name": described(result.job),
            "round": result.metrics[-1]["round"] if result.metrics else 0,
            "rounds": result.job.rounds if isinstance(result.job, Run) else None,
        }
        for result in results
        if result.status == "running"
    ]
    shares = [_share(result) for result in results]
    return {
        "done": sum(result.done for result in results),
        "total": len(results),
        "share": sum(shares) / max(len(shares), 1),
        "running": running,
    }


def _share(result: Result) -> float:
    if result.done or not isinstance(result.job, Run) or not result.metrics:
        return float(result.done)
    return min(1.0, float(result.metrics[-1]["round"]) / result.job.rounds)


@contextmanager
def served(report: LiveReport, port: int) -> Iterator[str]:
    """Serve a report on this machine meanwhile; gives the address. Port 0 is any that is free."""
    with _Server(report, port) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://{HOST}:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, report: LiveReport, port: int) -> None:
        self.report, self._free = report, threading.BoundedSemaphore(MOST_REQUESTS)
        super().__init__((HOST, port), _Handler)

    def server_bind(self) -> None:
        """Bind, and ask no name server for the name of this machine."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser went away, or waited too long."""
        logger.debug("a request was not answered", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10
    server_version, sys_version = "byzantium", ""

    def do_GET(self) -> None:
        """Answer with the page or its data, and with nothing else."""
        if self._name() not in NAMES:
            self._answer(403, b"This address is not for this name; use http://127.0.0.1.\n")
        elif self.path not in ("/", "/data"):
            self._answer(404, b"There are / and /data.\n")
        else:
            try:
                state = self.server.report.state()
            except Exception as error:  # the files of somebody else may cause any
                logger.warning("the results cannot be read: %s: %s", type(error).__name__, error)
                self._answer(500, b"The results cannot be read; the terminal says why.\n")
                return
            self._send(state)

    def _send(self, state: State) -> None:
        if self.path == "/":
            content = gzip.compress(page(state.values).encode(), 1)
            self._answer(200, content, "text/html; charset=utf-8", compressed=True)
        elif self.headers.get("If-None-Match") == state.version:
            self._answer(304, b"")
        else:
            self._answer(200, state.data, "application/json", compressed=True)

    def _name(self) -> str | None:
        """The name of the host in the request, without the port."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1:
            return None
        try:
            return urlsplit(f"//{hosts[0]}").hostname
        except ValueError:
            return None

    def _answer(
        self,
        code: int,
        content: bytes,
        kind: str = "text/plain; charset=utf-8",
        *,
        compressed: bool = False,
    ) -> None:
        self.send_response(code)
        if compressed:
            self.send_header("Content-Encoding", "gzip")
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "Content-Security-Policy": "frame-ancestors 'none'",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Print nothing: the terminal is for the address."""
