"""`hf:ORG/NAME[@revision]`: config.json and safetensors headers, from the local cache or the Hub.

The cache is that of huggingface_hub, read without it: `models--ORG--NAME/refs/REVISION` holds a
commit, `snapshots/COMMIT/` that commit's files. What is not there is asked of the Hub through the
optional huggingface_hub, whose session brings the user's endpoint (HF_ENDPOINT), token, proxies
and certificates. Weights are never downloaded: of a safetensors file only the parts with its
header are asked for, and a server that sends more is hung up on. Nothing is written.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn
from urllib.parse import quote

from kvcalc.core.errors import InputError, KvcalcError, UnavailableError, UsageError
from kvcalc.core.units import format_bytes
from kvcalc.core.values import Value
from kvcalc.models.json_documents import MAX_CHARACTERS, decode_json
from kvcalc.models.text import printable, shown
from kvcalc.models.weight_names import format_of_name
from kvcalc.models.weights import (
    Tensor,
    Weights,
    gather,
    read_header,
    read_index,
    read_safetensors,
    summarise,
)
from kvcalc.models.weights.header import INDEX_NAME, MAX_INDEX_BYTES, SINGLE_NAME

__all__ = [
    "PREFIX",
    "QUANTIZATION",
    "HubFiles",
    "HubReference",
    "cache_folder",
    "fetch_model_files",
    "parse",
]

PREFIX = "hf:"

_CONFIG = "config.json"
QUANTIZATION = "hf_quant_config.json"
"""What ModelOpt wrote beside a config that says nothing of its quantisation."""
_SAYS_ITSELF = '"quantization_config"'
_ENDPOINT = "https://huggingface.co"
_SECONDS = 10.0
"""To wait for the next bytes; HF_HUB_DOWNLOAD_TIMEOUT replaces it, as in huggingface_hub."""
_TOTAL_SECONDS = 120.0
"""For one file from the first address to its last byte, however steadily it drips in."""
_EXCHANGE_SECONDS = 600.0
_EXCHANGE_BYTES = 2**28
"""For all files of a model together: an index may name ten thousand shards."""
_MOST_REDIRECTS = 5
_MOST_OF_TOKEN = 2**12
_FIRST_BYTES = 2**17
"""Most headers are shorter than this, so that one request a shard is enough."""
_CONNECTIONS = 8

# huggingface_hub's validate_repo_id: letters, digits, "-", "_", "."; no "--" or ".."; 96 at most.
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?"
_REPOSITORY = re.compile(rf"(?=.{{1,96}}$)(?!.*(?:--|\.\.))(?!.*\.git$){_PART}/{_PART}")
_REVISION = re.compile(r"(?=.{1,200}$)(?!.*(?:\.\.|//))[A-Za-z0-9_][A-Za-z0-9_./+-]*(?<![/.])")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_TRUE = ("1", "ON", "YES", "TRUE")

_LOGIN = "log in with `hf auth login`, or set HF_TOKEN"


class HubReference(Value, frozen=True, kw_only=True):
    """A repository of the Hub and a revision of it: a branch, a tag or a commit."""

    repository: str
    revision: str = "main"

    def __str__(self) -> str:
        revision = "" if self.revision == "main" else f"@{self.revision}"
        return f"{PREFIX}{self.repository}{revision}"


class HubFiles(Value, frozen=True, kw_only=True):
    """What a repository says about its model.

    Attributes:
        config_text: config.json, decoded but not parsed.
        repository: ORG/NAME.
        revision: the commit; as asked for, where the server does not say which commit it is.
        quantization_text: hf_quant_config.json, where config.json says nothing of a quantisation
            and the repository's name does; empty where there is none.
        weights: None where the repository has no safetensors files or, with the reason in
            `notes`, where they could not be looked at.
        cached: config.json came from the local cache.
        notes: what a reader of the numbers should know.
    """

    config_text: str
    repository: str
    revision: str
    quantization_text: str = ""
    weights: Weights | None = None
    cached: bool = False
    notes: tuple[str, ...] = ()


def parse(reference: str) -> HubReference:
    """Read `hf:ORG/NAME[@revision]`; the `hf:` may be missing.

    Raises:
        UsageError: it is not of this form.
    """
    repository, at, revision = reference.removeprefix(PREFIX).partition("@")
    if not _REPOSITORY.fullmatch(repository):
        raise UsageError(
            f"{shown(reference, 120)} names no repository of the Hub",
            hint="write hf:ORG/NAME or hf:ORG/NAME@REVISION, as in hf:Qwen/Qwen3-8B",
        )
    if at and not _REVISION.fullmatch(revision):
        raise UsageError(
            f"{shown(revision, 120)} is no revision of a repository",
            hint="give a branch, a tag or a commit after the @",
        )
    return HubReference(repository=repository, revision=revision if at else "main")


def fetch_model_files(reference: str, *, weights: bool = True) -> HubFiles:
    """Read a model's config.json and what its weights take.

    Args:
        reference: `hf:ORG/NAME[@revision]`.
        weights: whether to look at safetensors headers as well, a request or two a shard.

    Raises:
        UsageError: not such a reference.
        UnavailableError: not in the cache, and the Hub cannot be asked or does not answer; a
            repository, revision or file that does not exist; or no access to it.
        InputError: what is there cannot be read as what it should be.
    """
    wanted = parse(reference)
    snapshot = _cached_snapshot(wanted)
    if snapshot is None:
        return _from_hub(wanted, _Limits(), weights=weights)
    data = _read_cached(os.path.join(snapshot, _CONFIG), MAX_CHARACTERS)
    text = decode_json(data, f"{wanted}/{_CONFIG}")
    commit = os.path.basename(snapshot)
    found, notes = _beside(wanted, snapshot, commit) if weights else (None, ())
    beside = os.path.join(snapshot, QUANTIZATION)
    quantization = _read_cached(beside, MAX_CHARACTERS) if os.path.isfile(beside) else b""
    return HubFiles(
        config_text=text,
        repository=wanted.repository,
        revision=commit,
        quantization_text=decode_json(quantization, f"{wanted}/{QUANTIZATION}"),
        weights=found,
        cached=True,
        notes=notes,
    )


def cache_folder() -> str:
    """Return the folder of huggingface_hub's cache (its constants.py: HF_HUB_CACHE)."""
    environ, home = os.environ, _home()
    folder = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    return os.path.expandvars(os.path.expanduser(folder or os.path.join(home, "hub")))


def _is_offline() -> bool:
    value = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    return value.upper() in _TRUE


def _cached_snapshot(wanted: HubReference) -> str | None:
    """Return the folder of the cached snapshot, if it is there and holds a config.json."""
    folder = os.path.join(cache_folder(), f"models--{wanted.repository.replace('/', '--')}")
    commit = wanted.revision
    if not _COMMIT.fullmatch(commit):
        try:
            with Path(folder, "refs", *wanted.revision.split("/")).open("rb") as stream:
                commit = stream.read(100).decode("ascii").strip()
        except (OSError, ValueError):  # ValueError: not ASCII
            return None
        if not _COMMIT.fullmatch(commit):
            return None
    snapshot = os.path.join(folder, "snapshots", commit)
    return snapshot if os.path.isfile(os.path.join(snapshot, _CONFIG)) else None


def _read_cached(path: str, limit: int) -> bytes:
    try:
        with Path(path).open("rb") as stream:
            return stream.read(limit + 1)
    except OSError as error:
        message = f"cannot be read: {printable(error.strerror or type(error).__name__)}"
        hint = "make it readable, or delete it from the cache"
        raise InputError(message, hint=hint, where=printable(path)) from None


def _beside(
    wanted: HubReference, snapshot: str, commit: str
) -> tuple[Weights | None, tuple[str, ...]]:
    """Return the weights that belong to a cached config: beside it, or on the Hub."""
    if _is_whole(snapshot):
        return read_safetensors(snapshot), ()
    try:
        return _Remote(wanted, commit, _Limits()).weights()
    except UnavailableError as error:
        return None, (f"weights unknown: {error.message}",)


def _is_whole(snapshot: str) -> bool:
    """Whether all weights are in a snapshot; the cache may hold some of the files."""
    index = os.path.join(snapshot, INDEX_NAME)
    if not os.path.exists(index):
        return os.path.exists(os.path.join(snapshot, SINGLE_NAME))
    shards = read_index(_read_cached(index, MAX_INDEX_BYTES), printable(index)).shards()
    return all(os.path.exists(os.path.join(snapshot, shard)) for shard in shards)


def _from_hub(wanted: HubReference, limits: _Limits, *, weights: bool) -> HubFiles:
    remote = _Remote(wanted, wanted.revision, limits)
    config = remote.get(_CONFIG, MAX_CHARACTERS)
    if config is None:
        raise UnavailableError(
            f"the repository has no {_CONFIG}",
            hint="give a repository with one, or a GGUF file by its path",
            where=str(wanted),
        )
    # From here on the commit, so that all files are of one revision whatever is pushed meanwhile.
    revision = config.commit or wanted.revision
    text = decode_json(config.data, f"{wanted}/{_CONFIG}")
    pinned = _Remote(wanted, revision, limits)
    found, notes = pinned.weights() if weights else (None, ())
    quantization = None
    if _SAYS_ITSELF not in text and format_of_name(wanted.repository) is not None:
        quantization = pinned.get(QUANTIZATION, MAX_CHARACTERS)
    data = b"" if quantization is None else quantization.data
    return HubFiles(
        config_text=text,
        repository=wanted.repository,
        revision=revision,
        quantization_text=decode_json(data, f"{wanted}/{QUANTIZATION}"),
        weights=found,
        notes=notes,
    )


class _Answer(NamedTuple):
    """The beginning of a file: its bytes, the whole file's size, and the commit, if known."""

    data: bytes
    size: int | None
    commit: str


class _Limits:
    """What all requests for one model may take together, of time and of bytes."""

    def __init__(self) -> None:
        self._end = time.monotonic() + max(_EXCHANGE_SECONDS, _timeout())
        self._bytes = _EXCHANGE_BYTES
        self._lock = threading.Lock()

    def seconds(self) -> float:
        """Return the seconds that are left, of which there may be none."""
        return self._end - time.monotonic()

    def take(self, count: int) -> bool:
        """Count bytes that came in; whether there were as many left."""
        with self._lock:
            self._bytes -= count
            return self._bytes >= 0


class _Remote:
    """One revision of a repository on the Hub."""

    def __init__(self, wanted: HubReference, revision: str, limits: _Limits) -> None:
        self._wanted = wanted
        self._revision = revision
        self._limits = limits
        self._hub = _library(wanted)
        self._timeout = _timeout()

    def weights(self) -> tuple[Weights | None, tuple[str, ...]]:
        """Return the weights, and notes where there are none."""
        index = self.get(INDEX_NAME, MAX_INDEX_BYTES)
        if index is None:
            single = self._header(SINGLE_NAME)
            if single is None:
                return None, ("weights unknown: the repository has no model.safetensors",)
            return summarise(single, shards=1), ()
        where = f"{self._wanted}/{INDEX_NAME}"
        found = read_index(index.data, where)
        names = found.shards()
        with ThreadPoolExecutor(max_workers=_CONNECTIONS) as pool:
            # The first failure ends the wait; those not begun yet are dropped.
            pending = [pool.submit(self._header, name) for name in names]
            try:
                headers = [future.result() for future in pending]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
        shards = {}
        for name, header in zip(names, headers, strict=True):
            if header is None:
                hint = "the repository is incomplete: choose another revision"
                raise InputError(f"the repository has no {name}", hint=hint, where=where)
            shards[name] = header
        tensors, notes = gather(found, shards, where)
        weights = summarise(tensors, shards=len(shards), stated_bytes=found.total_size, notes=notes)
        return weights, ()

    def _header(self, file: str) -> tuple[Tensor, ...] | None:
        """Read the header of a safetensors file; None where there is no such file."""
        first = self.get(file, _FIRST_BYTES, start=0)
        if first is None:
            return None
        if first.size is None:
            self._refuse(file, "the server does not say how large it is")
        whole_size = first.size

        def read(offset: int, count: int) -> bytes:
            if offset + count <= len(first.data) or len(first.data) == whole_size:
                return first.data[offset : offset + count]
            more = self.get(file, count, start=offset)
            if more is None or more.size != whole_size:
                self._refuse(file, "the server changes its answers")
            return more.data

        return read_header(read, whole_size, f"{self._wanted}/{file}")

    def get(self, file: str, limit: int, start: int | None = None) -> _Answer | None:
        """Return a file, or a part of it; None where the repository has no such file.

        Args:
            file: the name in the repository.
            limit: of a part, the bytes wanted; of a whole file, the most that is read, and a
                byte more, so that the reader refuses what is too large.
            start: of a part, its first byte; None for the whole file.

        Raises:
            UnavailableError: the server does not give it.
        """
        headers = {"accept-encoding": "identity"}
        if start is not None:
            headers["range"] = f"bytes={start}-{start + limit - 1}"
        with self._asked(file, headers) as (response, commit):
            if response.status_code not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
                self._refuse_unless_absent(file, response)
                return None
            size = _whole_size(response, start)
            is_part = response.status_code == HTTPStatus.PARTIAL_CONTENT
            if (start and not is_part) or (is_part and size is None):
                self._refuse(file, "the server gives another part than the one asked for")
            wanted = limit if start is not None else limit + 1
            data = self._body(response, file, wanted)
            if size is not None and len(data) < min(wanted, size - (start or 0)):
                self._refuse(file, "the connection ended early")
            return _Answer(data, size, commit)

    @contextmanager
    def _asked(self, file: str, headers: dict[str, str]) -> Iterator[tuple[Any, str]]:
        """Ask for a file; whatever goes wrong on the way is an UnavailableError.

        A timeout is one of silence: what drips in, or repeats itself before it answers, is ended
        from outside, by closing its connection.
        """
        endpoint = (os.environ.get("HF_ENDPOINT") or _ENDPOINT).rstrip("/")
        revision = quote(self._revision, safe="")
        url = f"{endpoint}/{self._wanted.repository}/resolve/{revision}/{file}"
        late = threading.Event()

        def end() -> None:
            late.set()
            self._hub.close_session()

        limit = min(max(_TOTAL_SECONDS, self._timeout), self._limits.seconds())
        if limit <= 0:
            self._refuse(file, "the files before it took all the time that a model may take")
        watch = threading.Timer(limit, end)
        watch.daemon = True
        watch.start()
        try:
            asked = self._hub.utils.build_hf_headers(token=_token(), library_name="kvcalc")
            session = self._hub.get_session()
            request = session.build_request(
                "GET", url, headers=asked | headers, timeout=self._timeout
            )
            response, commit = self._followed(session, request, file)
            try:
                yield response, commit
            finally:
                response.close()
        except KvcalcError:
            raise
        except Exception as error:
            if late.is_set():
                self._refuse(file, f"it does not come in within {limit:.3g} s")
            # httpx or httpx2, whichever the installed huggingface_hub stands on, has some twenty
            # classes. Their texts are not repeated: one of them quotes the header with the token.
            self._unreachable(type(error), endpoint)
        finally:
            watch.cancel()

    def _followed(self, session: Any, request: Any, file: str) -> tuple[Any, str]:
        """Return the answer at the end of redirects, whose own bodies are not read, and the commit.

        The Hub says it before it redirects to a blob.
        """
        commit, left = "", _MOST_REDIRECTS
        while True:
            response = session.send(request, stream=True, follow_redirects=False)
            commit = commit or _commit(response)
            if response.next_request is None:
                return response, commit
            response.close()
            if not left:
                self._refuse(file, f"more than {_MOST_REDIRECTS} redirects")
            left, request = left - 1, response.next_request

    def _body(self, response: Any, file: str, wanted: int) -> bytes:
        """Read at most `wanted` bytes; the connection is closed on the rest."""
        parts, missing = [], wanted
        for part in response.iter_raw():
            parts.append(part[:missing])
            missing -= len(parts[-1])
            if not self._limits.take(len(part)):
                self._refuse(
                    file, f"more than {format_bytes(_EXCHANGE_BYTES)} of the model's files"
                )
            if missing <= 0:
                break
        return b"".join(parts)

    def _refuse_unless_absent(self, file: str, response: Any) -> None:
        """Say what keeps the file from us, unless the repository just does not have it."""
        status, code = response.status_code, response.headers.get("x-error-code", "")
        missing = status == HTTPStatus.NOT_FOUND
        # Without a code a 404 for config.json may mean the repository; for other files we know it.
        if missing and (code == "EntryNotFound" or (not code and file != _CONFIG)):
            return
        access = "ask for access on its page on the Hub; then " + _LOGIN
        if code == "RevisionNotFound":
            message = f"the repository has no revision {shown(self._revision, 120)}"
            hint = "give a branch, a tag or a commit of the repository"
        elif code == "GatedRepo":
            message, hint = "the repository is gated", access
        elif missing and code != "RepoNotFound":
            message = f"the Hub knows no such repository, or it has no {_CONFIG}"
            hint = "check ORG, NAME and the revision"
        elif missing or status == HTTPStatus.UNAUTHORIZED:
            message = "the repository does not exist, or it is private"
            hint = f"check ORG and NAME; for a private repository {_LOGIN}"
        elif status == HTTPStatus.FORBIDDEN:
            message, hint = "no access to the repository", access
        elif status == HTTPStatus.TOO_MANY_REQUESTS:
            message, hint = "the Hub answers: too many requests", f"wait some minutes, or {_LOGIN}"
        else:
            message = f"the Hub answers with status {status} for {file}"
            hint = "try again later, or give the path of a local config.json"
        raise UnavailableError(message, hint=hint, where=str(self._wanted))

    def _unreachable(self, error: type[Exception], endpoint: str) -> NoReturn:
        address = endpoint.rpartition("@")[2]  # what stands before may be a password
        host = shown(re.sub(r"^https?://", "", address), 120).strip("'")
        hint = "check the network and HTTPS_PROXY, or give the path of a local config.json"
        kinds = "".join(base.__name__ for base in error.__mro__)
        if "Timeout" in kinds:
            message = f"{host} did not answer within {self._timeout:g} s"
            hint = "try again, or set HF_HUB_DOWNLOAD_TIMEOUT to more seconds"
        elif "Proxy" in kinds:
            message = f"the proxy before {host} refuses the connection"
            hint = "check HTTPS_PROXY and NO_PROXY"
        elif "UnsupportedProtocol" in kinds or "InvalidURL" in kinds:
            message, hint = f"HF_ENDPOINT {shown(address)} is no address", "unset it, or correct it"
        elif "LocalProtocol" in kinds or "UnicodeEncode" in kinds:
            message, hint = "the token cannot be sent", "set HF_TOKEN to the token alone"
        elif "OfflineMode" in kinds:
            _refuse_offline(self._wanted)
        else:
            message = f"{host} cannot be reached ({error.__name__})"
        raise UnavailableError(message, hint=hint, where=str(self._wanted)) from None

    def _refuse(self, file: str, message: str) -> NoReturn:
        raise UnavailableError(
            f"{file}: {message}",
            hint="try again, or download the model and give its folder",
            where=str(self._wanted),
        )


def _whole_size(response: Any, start: int | None) -> int | None:
    """Return the size of the whole file, if the answer says it; checks the part against `start`."""
    if response.status_code == HTTPStatus.PARTIAL_CONTENT:
        match = _RANGE.fullmatch(response.headers.get("content-range", ""))
        if match and int(match[1]) == (start or 0) <= int(match[2]) < int(match[3]):
            return int(match[3])
        return None
    length = response.headers.get("content-length", "")
    return int(length) if re.fullmatch(r"[0-9]{1,18}", length) else None


def _commit(response: Any) -> str:
    """Return the commit of an answer; "" where it says none."""
    commit: str = response.headers.get("x-repo-commit", "")
    return commit if _COMMIT.fullmatch(commit) else ""


def _token() -> str | bool:
    """Return the user's token; False for none.

    As huggingface_hub finds it (utils/_auth.py), which would also ask other servers for one
    without any limit, and write what they say.
    """
    environ = os.environ
    if environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").upper() in _TRUE:
        return False
    path = environ.get("HF_TOKEN_PATH") or os.path.join(_home(), "token")
    told = environ.get("HF_TOKEN") or environ.get("HUGGING_FACE_HUB_TOKEN")
    if not told:
        try:
            with Path(os.path.expanduser(path)).open("rb") as stream:
                told = stream.read(_MOST_OF_TOKEN).decode("utf-8", "replace")
        except OSError:
            return False
    return told.replace("\r", "").replace("\n", "").strip() or False


def _home() -> str:
    environ = os.environ
    home = environ.get("HF_HOME") or os.path.join(
        environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache"), "huggingface"
    )
    return os.path.expandvars(os.path.expanduser(home))


def _timeout() -> float:
    text = os.environ.get("HF_HUB_DOWNLOAD_TIMEOUT", "")
    return float(text) if re.fullmatch(r"[1-9][0-9]{0,5}", text) else _SECONDS


def _library(wanted: HubReference) -> ModuleType:
    """Return huggingface_hub.

    Raises:
        UnavailableError: offline by the user's wish, or the package is not installed.
    """
    if _is_offline():
        _refuse_offline(wanted)
    try:
        import huggingface_hub
        import huggingface_hub.utils
    except ImportError:
        raise UnavailableError(
            "not in the local Hugging Face cache, and the extra to ask the Hub is not installed",
            hint="pip install kvcalc[hub], or give the path of a local config.json",
            where=str(wanted),
        ) from None
    except Exception as error:  # it reads its settings from the environment while imported
        message = f"huggingface_hub cannot be loaded ({type(error).__name__})"
        hint = "check the HF_* variables, or give the path of a local config.json"
        raise UnavailableError(message, hint=hint, where=str(wanted)) from None
    if huggingface_hub.__version__.startswith("0."):  # a session of requests, not of httpx
        raise UnavailableError(
            "huggingface_hub is older than 1.0",
            hint="pip install -U kvcalc[hub]",
            where=str(wanted),
        )
    return huggingface_hub


def _refuse_offline(wanted: HubReference) -> NoReturn:
    raise UnavailableError(
        "not in the local Hugging Face cache, and HF_HUB_OFFLINE forbids to ask the Hub",
        hint="unset HF_HUB_OFFLINE, or give the path of a local config.json",
        where=str(wanted),
    )
