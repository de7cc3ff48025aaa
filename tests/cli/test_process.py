"""The command as a process: pipes, full disks, encodings, closed streams, interruptions."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from kvcalc import __version__
from kvcalc.__main__ import run
from tests.cli.harness import is_fault, python

KVCALC = (sys.executable, "-m", "kvcalc")
posix = pytest.mark.skipif(os.name == "nt", reason="needs a POSIX shell")
full_disk = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")


def shell(command: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash in which `kvcalc` is this checkout's."""
    line = f'set -o pipefail; kvcalc() {{ {sys.executable} -m kvcalc "$@"; }}; {command}'
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False
    )


def test_module() -> None:
    """`python -m kvcalc` is the command."""
    outcome = python("-m", "kvcalc", "per-token", "llama-3.1-8b")

    assert outcome.code == 0
    assert "131,072" in outcome.out


def test_script() -> None:
    """So is the script that installing it makes."""
    script = Path(sys.executable).with_name("kvcalc")
    if not script.exists():
        pytest.skip("kvcalc is not installed as a script in this environment")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout, done.stderr) == (0, f"kvcalc {__version__}\n", "")


def test_exit_codes() -> None:
    """The process leaves with the code."""
    assert is_fault(python("-m", "kvcalc", "compare", "--max", "32k"))


@posix
@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_closed_pipe(form: str) -> None:
    """A reader that goes away is no error and no word, even under pipefail."""
    done = shell(f"kvcalc presets show llama-3.1-8b gemma-3-27b -f {form} | head -c 1")

    assert (done.returncode, done.stderr, len(done.stdout)) == (0, "", 1)


@posix
def test_closed_pipe_before_the_first_byte() -> None:
    """Nor is one that never reads."""
    done = shell("{ sleep 1; kvcalc gpus; } | true")

    assert (done.returncode, done.stderr) == (0, "")


@full_disk
@pytest.mark.parametrize("arguments", ["gpus", "gpus -f json", "schema compare", "--version"])
def test_full_disk(arguments: str) -> None:
    """A full disk is one line and 2."""
    done = shell(f"kvcalc {arguments} > /dev/full")

    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == (
        "error: the output cannot be written: No space left on device"
    )
    assert len(done.stderr.splitlines()) == 2


@full_disk
@pytest.mark.parametrize("arguments", ["--help", "compare --help"])
def test_full_disk_and_help(arguments: str) -> None:
    """So it is for help."""
    done = shell(f"kvcalc {arguments} > /dev/full")

    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 2


@posix
@pytest.mark.parametrize("form", ["table", "json"])
def test_closed_stdout(form: str) -> None:
    """Without a stdout there is no bug to report, but output that cannot be written."""
    done = shell(f"kvcalc gpus -f {form} >&-")

    assert done.returncode == 2
    assert "bug" not in done.stderr
    assert done.stderr.startswith("error: the output cannot be written")


@posix
def test_closed_stderr() -> None:
    """Without a stderr the result is printed, and an error keeps its code."""
    assert shell("kvcalc compare -f csv 2>&-").returncode == 0
    done = shell("kvcalc compare 2>&-")
    assert done.returncode == 0
    assert "65,536" in done.stdout
    assert "note:" not in done.stdout
    assert shell("kvcalc compare nope 2>&-").returncode == 2


@posix
def test_closed_stdin() -> None:
    """Without a stdin a trace cannot come from there."""
    done = shell("kvcalc compare --trace - <&-")

    assert done.returncode == 2
    assert "there is no stdin" in done.stderr


@posix
def test_interrupted() -> None:
    """Ctrl-C while a trace is awaited is 130 and no traceback."""
    process = subprocess.Popen(
        [*KVCALC, "compare", "--trace", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A job in the background, which this suite may be, ignores Ctrl-C, and so do its children.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)

    assert (process.returncode, out, err) == (130, "", "")


class _Interrupted:
    @property
    def main(self) -> object:
        raise KeyboardInterrupt


def test_interrupted_while_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the command is still being imported is the same."""
    monkeypatch.setitem(sys.modules, "kvcalc.cli.app", _Interrupted())

    with pytest.raises((SystemExit, KeyboardInterrupt)) as left:
        run()
    assert getattr(left.value, "code", "a traceback") == 130


def test_ascii() -> None:
    """Where the console knows ASCII alone, bars are drawn in it."""
    outcome = python("-m", "kvcalc", "compare", PYTHONIOENCODING="ascii")

    assert outcome.code == 0
    assert outcome.out.isascii()
    assert "######" in outcome.out


def test_block_characters() -> None:
    """Where it knows UTF-8, in block characters."""
    assert "░" in python("-m", "kvcalc", "compare", PYTHONIOENCODING="utf-8").out


def _on_a_terminal(**variables: str) -> str:
    """Return what `kvcalc compare` prints on a terminal of 80 columns."""
    pty = pytest.importorskip("pty", reason="no terminals here")
    import fcntl
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **variables}
    process = subprocess.Popen(
        [*KVCALC, "compare", "--block", "16", "--block", "32", "--block", "64"],
        stdout=slave,
        stderr=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
        env=environment,
    )
    os.close(slave)
    parts = []
    while True:
        try:
            part = os.read(master, 65_536)
        except OSError:  # Linux says so at the end
            break
        if not part:
            break
        parts.append(part)
    os.close(master)
    assert process.wait(timeout=20) == 0
    return b"".join(parts).decode("utf-8")


@posix
def test_terminal() -> None:
    """A terminal gets colours, and lines that fit it."""
    shown = _on_a_terminal()

    assert "\x1b[" in shown
    assert "\x1b" not in _on_a_terminal(NO_COLOR="1").replace("\x1b[1m", "").replace(
        "\x1b[2m", ""
    ).replace("\x1b[0m", "")


@posix
def test_terminal_width() -> None:
    """No line is wider than the terminal."""
    import re

    plain = re.sub(r"\x1b\[[\d;]*m", "", _on_a_terminal())

    assert max(len(line) for line in plain.splitlines()) <= 80
    assert "85.66 %" in plain
