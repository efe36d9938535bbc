"""The life of a mount: start, serve, restart the worker, end.

Before the mount answers, any failure ends it with one line and nothing stays mounted. After that
the mount outlives its worker: one that ends with a non-zero status is started again, sooner or
later according to how often that happened, with the same device, so readers wait and see no error.
With libfuse the device dies with the worker: the dead mount is cleared and a new one made, and
whoever had files open sees ENOTCONN.

An end comes in three ways:

* asked for (SIGTERM, SIGINT): unmount, lazily when somebody is inside; whoever still reads has
  `stop_timeout_s` to finish, then the worker is told to stop. A second signal cuts this short.
* the worker ends with status 0: the mount was taken away from outside, or its worker was told to.
* the holder is killed: the worker sees the end of the link and unmounts (`fusermount.detach`).

SIGHUP has the worker read its configuration anew. What it takes on comes back, so that the next
worker begins with that and not with what the mount once began with.

Standard library only.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from tiercache.errors import MountError
from tiercache.fuse import fusermount, mountpoint, syscalls
from tiercache.fuse.attach import Attached, UnsupportedKernelError, attach
from tiercache.fuse.events import Ended, Events, ReloadAsked, Said, Signalled
from tiercache.fuse.link import Message
from tiercache.fuse.locks import Locks
from tiercache.fuse.notify import sd_notify
from tiercache.fuse.runtime import LOG, RuntimeDir
from tiercache.fuse.session import Wants
from tiercache.fuse.settings import Settings, read_settings
from tiercache.fuse.workerprocess import WorkerProcess

#: Pause before the first restart; doubles with each until the next bound.
BACKOFF_MIN_S = 0.05
BACKOFF_MAX_S = 5.0

#: A worker that served this long was healthy: the next crash is a first one again.
HEALTHY_S = 60.0

#: What a worker gets to end after it was told to, and no reader is left to wait for.
END_TIMEOUT_S = 1.0

NEVER = float("inf")


class StopRequested(Exception):  # noqa: N818 - a wish, not an error
    """A signal asked for the end while the mount was still coming up."""


class Supervisor:
    """Runs one mount. `command` is the worker's program, after `python -P`.

    The caller holds the lock of the mount point, so whatever tiercache mount sits there is ours.
    """

    def __init__(
        self,
        settings: Settings,
        runtime: RuntimeDir,
        locks: Locks,
        command: Sequence[str],
        oom_score_adj: str,
    ) -> None:
        self._settings = settings
        self._runtime = runtime
        self._locks = locks
        self._command = command
        self._oom_score_adj = oom_score_adj
        self._events = Events()
        self._worker: WorkerProcess | None = None
        self._driver = "libfuse" if settings.driver == "libfuse" else "kernel"
        self._attached: Attached | None = None
        self._st_dev: int | None = None
        self._opens = os.memfd_create("tiercache-opens", os.MFD_CLOEXEC)
        self._warnings: list[str] = []
        self._phase = "starting"
        self._reload_wanted = False
        self._started_at = time.time()
        self._restarts = 0
        self._crashes = 0  # in a row, for the pause before the next start
        self._healthy_at = NEVER
        self._deadline = NEVER  # of the next start while there is no worker, else of its "serving"

    def start(self) -> None:
        """Bring the mount up until it answers. Raises MountError or StopRequested."""
        deadline = time.monotonic() + self._settings.ready_timeout_s
        self._start_worker()
        self._expect("checked", deadline)
        if self._driver == "kernel":
            self._attach()
        self._hand_over()
        self._expect("serving", deadline)
        self._check_answer()
        self._serving()
        sd_notify("READY=1", f"STATUS=Serving {self._settings.source}")

    def supervise(self) -> None:
        """Keep the mount served until it ends."""
        while True:
            match self._events.next(self._worker, self._deadline):
                case Signalled():
                    return self._stop()
                case ReloadAsked():
                    self._reload()
                case Ended(status=0):
                    return None
                case Ended(status=status):
                    self._crashed(status)
                case Said(message=message):
                    self._heard(message)
                case None:
                    self._overdue()

    def close(self) -> None:
        """End whatever is left: worker, mount, device. Raises nothing."""
        if self._worker is not None:
            self._worker.end()
        self._unmount()
        if self._attached is not None:
            os.close(self._attached.dev)
        os.close(self._opens)

    def _start_worker(self) -> None:
        self._worker = WorkerProcess(self._command, self._locks.fds, self._oom_score_adj)
        self._locks.sign([os.getpid(), self._worker.pid])
        self._send(
            type="start",
            config=self._settings.config,
            given=self._settings.given,
            restarts=self._restarts,
            driver=self._driver,
            runtime_dir=str(self._runtime.path),
        )
        self._publish()

    def _send(self, fds: Sequence[int] = (), **message: object) -> None:
        """Tell the worker; one that is gone will be noticed by its end."""
        if self._worker is not None:
            self._worker.link.send(message, fds)

    def _expect(self, wanted: str, deadline: float) -> None:
        """Wait for message *wanted* of the first worker."""
        match self._events.next(self._worker, deadline):
            case Said(message={"type": "failed", "error": error}):
                raise MountError(str(error))
            case Said(message=message) if message["type"] == wanted:
                return
            case Signalled():
                raise StopRequested
            case ReloadAsked():
                self._reload()
                self._expect(wanted, deadline)
            case Ended(status=status):
                raise MountError(f"the worker {_how(status)} while it was starting")
            case None:
                raise MountError(f"not ready after {self._settings.ready_timeout_s:g} s")
            case other:
                raise MountError(f"the worker said {other} instead of {wanted!r}")

    def _attach(self) -> None:
        settings = self._settings
        try:
            self._attached = attach(
                settings.mountpoint, settings.source, settings.allow_other, wants(settings)
            )
        except UnsupportedKernelError as e:
            if settings.driver == "kernel":
                raise
            self._driver = "libfuse"
            self._warn(f"driver libfuse: {e}")

    def _hand_over(self) -> None:
        """Give the mount to the worker; without a device it mounts by itself."""
        if self._attached is None:
            self._send(type="mount", source=self._settings.source, driver=self._driver)
            return
        self._send(
            (self._attached.dev, self._opens),
            type="mounted",
            session=self._attached.session.as_json(),
            driver=self._driver,
        )

    def _check_answer(self) -> None:
        number = mountpoint.stat_errno(self._settings.mountpoint)
        if number is None:
            raise MountError("mounted, but the mount does not answer")
        if number:
            raise MountError(f"mounted, but the mount answers: {os.strerror(number)}")

    def _serving(self) -> None:
        """The worker serves, for the first time or again."""
        self._phase = "serving"
        self._deadline = NEVER
        self._healthy_at = time.monotonic() + HEALTHY_S
        found = mountpoint.top_mount(self._settings.mountpoint)
        if found is not None and found.st_dev != self._st_dev:
            self._st_dev = found.st_dev
            self._set_readahead()
        if self._reload_wanted:
            self._reload()
        self._publish()

    def _set_readahead(self) -> None:
        if self._st_dev is not None:
            problem = mountpoint.set_readahead(self._st_dev, self._settings.readahead)
            if problem is not None and problem not in self._warnings:
                self._warn(problem)

    def _reload(self) -> None:
        """Have the worker read its configuration anew, as soon as there is one that serves."""
        self._reload_wanted = self._phase != "serving"
        if not self._reload_wanted:
            self._send(type="reload")

    def _reloaded(self, config: dict[str, Any], given: dict[str, Any]) -> None:
        """The worker took on *config*; of ours only live settings can differ in it."""
        before, self._settings = self._settings, read_settings({**config, "given": given})
        if self._settings.readahead != before.readahead:
            self._set_readahead()
        self._publish()

    def _heard(self, message: Message) -> None:
        """A restarted worker reports, or one that read its configuration anew."""
        match message["type"]:
            case "checked":
                self._hand_over()
            case "serving":
                self._serving()
            case "reloaded":
                self._reloaded(message["config"], message["given"])
            case "failed":
                report(f"the worker cannot start again: {message['error']}")

    def _crashed(self, status: int) -> None:
        """Plan the next start."""
        now = time.monotonic()
        if now >= self._healthy_at:
            self._crashes = 0
        pause = min(BACKOFF_MIN_S * 2**self._crashes, BACKOFF_MAX_S)
        report(f"the worker {_how(status)}; starting it again in {pause:g} s")
        self._end_worker()
        if self._attached is None:
            self._unmount()
        # The exponent is bounded so that a mount that crashes for weeks does not count for weeks.
        self._crashes = min(self._crashes + 1, 16)
        self._restarts += 1
        self._healthy_at = NEVER
        self._deadline = now + pause
        self._phase = "restarting"
        self._publish()

    def _overdue(self) -> None:
        """The pause is over, or the new worker took too long."""
        if self._worker is not None:
            self._end_worker()
            return self._crashed(-signal.SIGKILL)
        self._deadline = time.monotonic() + self._settings.ready_timeout_s
        return self._start_worker()

    def _end_worker(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def _stop(self) -> None:
        """Unmount and let readers finish."""
        sd_notify("STOPPING=1", "STATUS=Unmounting")
        self._phase = "stopping"
        self._publish()
        unmounted = self._unmount()
        if unmounted and self._worker_ends(self._settings.stop_timeout_s):
            return
        self._send(type="stop")
        self._worker_ends(END_TIMEOUT_S)

    def _worker_ends(self, timeout_s: float) -> bool:
        """Whether all is over in time; a further signal makes it so at once."""
        deadline = time.monotonic() + timeout_s
        while self._worker is not None:
            match self._events.next(self._worker, deadline):
                case Ended():
                    return True
                case Signalled():
                    self._force()
                    return True
                case None:
                    return False
        return True

    def _force(self) -> None:
        """Fail what still waits for an answer. Closing the device does the same, if later."""
        self._end_worker()
        if self._st_dev is not None:
            mountpoint.abort_connection(self._st_dev)

    def _unmount(self) -> bool:
        """Take our mount away if it is there; False when it stays."""
        try:
            fusermount.detach(self._settings.mountpoint)
        except MountError as e:
            report(str(e))
            return False
        return True

    def _warn(self, text: str) -> None:
        self._warnings.append(text)
        report(text)

    def _publish(self) -> None:
        self._runtime.write_state(
            {
                "holder_pid": os.getpid(),
                "worker_pid": self._worker.pid if self._worker else None,
                "restarts": self._restarts,
                "mountpoint": str(self._settings.mountpoint),
                "source": self._settings.source,
                "driver": self._driver,
                "phase": self._phase,
                "started_at": self._started_at,
                "config_file": (self._settings.given or {}).get("file"),
                "log": str(self._settings.log_file or self._runtime.path / LOG),
                "warnings": self._warnings,
            }
        )


def wants(settings: Settings) -> Wants:
    """What to ask of the kernel, with the reason when that is not all of it."""
    refusal = ""
    if not settings.passthrough:
        refusal = "switched off"
    elif not syscalls.privileged():
        refusal = "unprivileged: needs CAP_SYS_ADMIN"
    return Wants(
        passthrough=not refusal,
        max_background=settings.max_background,
        readahead=settings.readahead,
        refusal=refusal,
    )


def report(text: str) -> None:
    """One line for the log."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    sys.stderr.write(f"{stamp} HOLDER: {text}\n")
    sys.stderr.flush()


def _how(status: int) -> str:
    if status < 0:
        return f"was killed by signal {-status}"
    return f"ended with status {status}"
