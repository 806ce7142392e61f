"""The program that reads records: `kubectl-grpo ui`, started as a child, asked over loopback, ended with SIGINT.

It prints an address with a token. The token becomes a cookie, and views are then read as JSON, as the viewer's page
reads them. All rules on reading records stay in the plugin.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from email.message import Message
from typing import TypeVar
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError

from grpo.errors import NotFound, RecordsError, ViewerError, faults
from grpo.models.views import Problem
from grpo.programs import PLUGIN_VARIABLE, shown

T = TypeVar("T")

ADDRESS = re.compile(r"http://(127\.0\.0\.1|localhost):(\d{1,5})/\?token=([0-9a-f]+)")
# A driver may be asked through the API server, and a scope may have 20,000 episodes.
REQUEST_SECONDS = 120.0
# The plugin deletes its reader pod before it ends.
INTERRUPT_SECONDS = 30.0
TERMINATE_SECONDS = 5.0
ENDING_SECONDS = 1.0
# Of what the plugin says on standard error, so much is kept.
MOST_SAID = 64 << 10
FIRST_PROGRESS_SECONDS = 10.0


class Progress:
    """A line on standard error after ten seconds, and every ten seconds from then on."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._began = time.monotonic()
        self._next = FIRST_PROGRESS_SECONDS

    def show(self, state: str) -> None:
        seconds = time.monotonic() - self._began
        if seconds >= self._next:
            self._next = seconds + FIRST_PROGRESS_SECONDS
            print(f"grpo: {self._what}: {state} ({seconds:.0f} s)", file=sys.stderr, flush=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends the child. It gets time to delete its reader pod, and is killed after that."""
    steps: list[tuple[Callable[[], None], float]] = [
        (lambda: process.send_signal(signal.SIGINT), INTERRUPT_SECONDS),
        (process.terminate, TERMINATE_SECONDS),
        (process.kill, TERMINATE_SECONDS),
    ]
    for send, seconds in steps:
        if process.poll() is not None:
            return
        # A system that refuses one signal gets the next: the child must not stay, and an error of the caller, who may
        # end it because of one, must not be replaced.
        with contextlib.suppress(OSError, ValueError, subprocess.TimeoutExpired):
            send()
            process.wait(seconds)


class Viewer:
    """A running `kubectl-grpo ui`."""

    def __init__(self, words: Sequence[str], start_seconds: float) -> None:
        self._said = f"`{os.path.basename(words[0])} {' '.join(words[1:])}`"
        try:
            # In a session of its own: Ctrl-C in a terminal would end it before this process has finished.
            self._process = subprocess.Popen(
                list(words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise ViewerError(
                f"starting {words[0]}: {error.strerror or error}; "
                f"set {PLUGIN_VARIABLE} to a kubectl-grpo that this machine runs"
            ) from error
        # Also at the end of the interpreter, and when this object is lost without being closed.
        self._finalizer = weakref.finalize(self, _end, self._process)
        self._lines: queue.Queue[str | None] = queue.Queue(maxsize=1)
        self._errors = bytearray()
        self._readers = [
            threading.Thread(target=_read_address, args=(self._process, self._lines), daemon=True),
            threading.Thread(target=_read_errors, args=(self._process, self._errors), daemon=True),
        ]
        for reader in self._readers:
            reader.start()
        try:
            self._host, self._port = self._address(start_seconds)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Ends the program. Later requests fail."""
        self._finalizer()

    def _address(self, seconds: float) -> tuple[str, int]:
        deadline = time.monotonic() + seconds
        progress = Progress(f"waiting for the address of {self._said}")
        while True:
            try:
                line = self._lines.get(timeout=0.2)
                break
            except queue.Empty:
                pass
            progress.show(self.errors().rpartition("\n")[2] or "it has printed nothing")
            if time.monotonic() > deadline:
                raise ViewerError(
                    f"{self._said} has not printed its address after {seconds:g} s{self._cause()}; "
                    "is the cluster reachable? `kubectl grpo status` tells, and `start_seconds` waits longer"
                )
        if line is None:
            raise self._ended()
        found = ADDRESS.fullmatch(line)
        if found is None:
            raise ViewerError(
                f"{self._said} printed {shown(line)[:200]!r} in place of an address{self._cause()}; "
                f"is {self._process.args[0]!r} a kubectl-grpo of this version?"  # type: ignore[index]
            )
        host, port = found[1], int(found[2])
        self._cookie = self._cookie_of(host, port, found[3])
        return host, port

    def _cookie_of(self, host: str, port: int, token: str) -> str:
        """Exchanges the token for the cookie, as a browser does."""
        status, headers, _ = self._request(host, port, f"/?token={token}", {})
        cookie = str(headers.get("set-cookie", "")).split(";")[0]
        if status != 303 or "=" not in cookie:
            raise ViewerError(
                f"{self._said} answered {status} to its own token; is another program on port {port}? "
                "Open the run again"
            )
        return cookie

    def _request(self, host: str, port: int, path: str, headers: dict[str, str]) -> tuple[int, Message, bytes]:
        connection = http.client.HTTPConnection(host, port, timeout=REQUEST_SECONDS)
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        except TimeoutError as error:
            raise ViewerError(
                f"{self._said} has not answered {path.partition('?')[0]} within {REQUEST_SECONDS:.0f} s"
                f"{self._cause()}; open the run again"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            # A program that dies closes its connections a moment before it can be waited for.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(ENDING_SECONDS)
                raise self._ended() from error
            raise ViewerError(
                f"{self._said} broke its connection at {path.partition('?')[0]}: {error!r}{self._cause()}; "
                "open the run again"
            ) from error
        finally:
            connection.close()

    def get(self, path: str, of: TypeAdapter[T]) -> T:
        """A view. `path`: below `/api/`, with plain characters."""
        if not self._finalizer.alive:
            raise ViewerError("this run is closed; open it again with grpo.open")
        status, _, body = self._request(self._host, self._port, f"/api/{path}", {"Cookie": self._cookie})
        if status != 200:
            raise self._refused(path, status, body)
        try:
            return of.validate_json(body)
        except ValidationError as error:
            raise ViewerError(
                f"malformed response from {self._said} at {path}, no view that this package knows:\n{faults(error)}\n"
                "Install kubectl-grpo and this package from the same version of grpo-operator"
            ) from error

    def _refused(self, path: str, status: int, body: bytes) -> RecordsError | ViewerError:
        try:
            message = Problem.model_validate_json(body).message
        except ValidationError:
            return ViewerError(
                f"{self._said} answered {status} to {path} without a cause{self._cause()}; "
                "install kubectl-grpo and this package from the same version of grpo-operator"
            )
        if status == 404:
            return NotFound(f"{message}; run.iterations(), run.evaluations() and run.episodes() list what there is")
        return RecordsError(f"reading {path.partition('/')[2]}: {message}")

    def problem(self, number: int) -> str | None:
        """Why records cannot be read now, as the viewer's stream of events says it first."""
        connection = http.client.HTTPConnection(self._host, self._port, timeout=5.0)
        try:
            connection.request("GET", "/events", headers={"Cookie": self._cookie})
            stream = connection.getresponse()
            # The stream begins with one event for each run.
            for _ in range(64):
                line = stream.readline()
                if not line:
                    return None
                if line.startswith(b"data:"):
                    event = json.loads(line.removeprefix(b"data:"))
                    if event["run"] == number:
                        problem = event.get("problem")
                        return None if problem is None else str(problem["message"])
            return None
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
            # The next view has the error.
            return None
        finally:
            connection.close()

    def errors(self) -> str:
        """What the program said on standard error."""
        return shown(bytes(self._errors).decode("utf-8", "replace"))

    def _cause(self) -> str:
        said = self.errors()
        return f"; it said: {said}" if said else ""

    def _ended(self) -> ViewerError:
        try:
            status = self._process.wait(TERMINATE_SECONDS)
        except subprocess.TimeoutExpired:
            return ViewerError(f"{self._said} closed its output without an address{self._cause()}; open the run again")
        self._readers[1].join(TERMINATE_SECONDS)
        ended = f"was ended by signal {-status}" if status < 0 else f"ended with exit status {status}"
        cause = self.errors() or "it printed no cause; run the command in a terminal"
        return ViewerError(f"{self._said} {ended}: {cause}")


def _read_address(process: subprocess.Popen[bytes], lines: queue.Queue[str | None]) -> None:
    """The first line, or None at the end. The rest is read too, so that the program never waits for a reader."""
    assert process.stdout is not None
    # A line without an end must not fill the memory.
    first = process.stdout.readline(4096)
    lines.put(first.decode("utf-8", "replace").rstrip("\r\n") if first else None)
    while process.stdout.read(1 << 16):
        pass


def _read_errors(process: subprocess.Popen[bytes], into: bytearray) -> None:
    assert process.stderr is not None
    while part := os.read(process.stderr.fileno(), 1 << 16):
        into.extend(part)
        del into[:-MOST_SAID]


def quoted(part: str) -> str:
    """A part of a view's path that a user gave."""
    return quote(part, safe="/")
