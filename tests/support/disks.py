"""Disks that a test may fill and write-protect under a running node.

`SmallDisk` is a tmpfs in a mount namespace of its own, held by a process: nothing is left mounted when a test dies.
It needs root, or a system that gives users namespaces. `limited` needs neither: it is the file size limit of running
processes, set to nothing, at which the kernel refuses every write to a file.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Self

NAMESPACES = (["--mount"], ["--user", "--map-root-user", "--mount"])
"""What `unshare` is asked for: the first that works is used."""


class NoMountError(AssertionError):
    """This machine lets the test mount nothing."""


class SmallDisk:
    """A tmpfs of `size_bytes` at `path`, which only processes started with `command` before theirs can see.

    `outside` is the same directory as this process reaches it.
    """

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        self._size_bytes = size_bytes
        self._holder: subprocess.Popen[str] | None = None
        self.command: Sequence[str] = ()

    def __enter__(self) -> Self:
        self.path.mkdir(parents=True, exist_ok=True)
        if shutil.which("unshare") is None or shutil.which("nsenter") is None:
            raise NoMountError("no file system can be mounted here: unshare and nsenter are needed")
        said = ""
        for flags in NAMESPACES:
            script = f"mount -t tmpfs -o size={self._size_bytes} tmpfs '{self.path}' && echo mounted && exec cat"
            holder = subprocess.Popen(
                ["unshare", *flags, "sh", "-c", script],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            assert holder.stdout is not None
            line = holder.stdout.readline().strip()
            self._holder = holder
            if line == "mounted":
                names = ["mnt", "user"] if "--user" in flags else ["mnt"]
                entering = [f"--{'mount' if name == 'mnt' else name}=/proc/{holder.pid}/ns/{name}" for name in names]
                self.command = ["nsenter", *entering, *(["--preserve-credentials"] if "user" in names else []), "--"]
                return self
            said += f"; unshare {' '.join(flags)}: {line}"
            self._end()
        raise NoMountError(f"no file system can be mounted here{said}")

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        holder, self._holder = self._holder, None
        if holder is not None:
            holder.communicate()  # the end of its input is the end of `cat`, and of the namespace

    @property
    def outside(self) -> Path:
        assert self._holder is not None
        return Path(f"/proc/{self._holder.pid}/root{self.path}")

    @property
    def free_bytes(self) -> int:
        found = os.statvfs(self.outside)
        return found.f_bavail * found.f_frsize

    @contextlib.contextmanager
    def filled(self, leave_bytes: int) -> Iterator[None]:
        """While inside, a file takes all but `leave_bytes` of what was free, with 0 the last block too."""
        filler = self.outside / "filler"
        with filler.open("wb", buffering=0) as file:
            margin_bytes = 0 if leave_bytes else 64 << 20  # what the node takes meanwhile must not make it fail
            os.posix_fallocate(file.fileno(), 0, max(1, self.free_bytes - leave_bytes - margin_bytes))
            file.seek(0, os.SEEK_END)
            for piece_bytes in (1 << 20, 4096) if margin_bytes else ():
                with contextlib.suppress(OSError):
                    while file.write(b"\0" * piece_bytes) == piece_bytes:
                        pass
        try:
            yield
        finally:
            filler.unlink()

    @contextlib.contextmanager
    def read_only(self) -> Iterator[None]:
        """While inside, nothing can be made or opened for writing below `path`. What is open stays open."""
        self._inside("mount", "--bind", str(self.path), str(self.path))
        self._inside("mount", "-o", "remount,bind,ro", str(self.path))
        try:
            yield
        finally:
            self._inside("mount", "-o", "remount,bind,rw", str(self.path))

    def _inside(self, *command: str) -> None:
        done = subprocess.run([*self.command, *command], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (command, done.stderr)


@contextlib.contextmanager
def limited(pids: Iterable[int]) -> Iterator[None]:
    """While inside, no process of `pids` can write to a file, open or new."""
    before = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in pids}
    for pid, (_, hard) in before.items():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        for pid, limits in before.items():
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
