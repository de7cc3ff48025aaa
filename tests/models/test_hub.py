"""Models of the Hub, against a stand-in of its endpoints on the loopback address."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import huggingface_hub
import pytest

from kvcalc.core.errors import InputError, KvcalcError, UnavailableError, UsageError
from kvcalc.models import hub
from kvcalc.models.hub import HubFiles, cache_folder, fetch_model_files, parse
from tests.guards import HANG

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER = "f" * 40
CONFIG = json.dumps({"model_type": "llama", "num_hidden_layers": 2}).encode()
TOKEN = "hf_" + "secret" * 5
LAYER = "model.layers.{}.self_attn.q_proj.weight"


def shard(*names: str, elements: int = 8, padding: int = 0) -> bytes:
    """Return a safetensors file of U8 tensors; its header is filled up by `padding` blanks."""
    header = {
        name: {
            "dtype": "U8",
            "shape": [elements],
            "data_offsets": [elements * at, elements * (at + 1)],
        }
        for at, name in enumerate(names)
    }
    text = json.dumps(header).encode() + b" " * padding
    return len(text).to_bytes(8, "little") + text + bytes(elements * len(names))


def index_of(shards: Mapping[str, tuple[str, ...]]) -> bytes:
    weight_map = {name: file for file, names in shards.items() for name in names}
    return json.dumps({"weight_map": weight_map}).encode()


class StandIn:
    """The Hub, as far as its `resolve` endpoint goes.

    `files` holds what repositories have; `answer` takes a request over where it returns True.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {"config.json": CONFIG}
        self.revisions = {"main": COMMIT, "refs/pr/1": OTHER, COMMIT: COMMIT, OTHER: OTHER}
        self.blobs: dict[str, bytes] = {}
        self.requests: list[tuple[str, str, str]] = []  # file, range, token
        self.sent = 0
        self.answer: Callable[[BaseHTTPRequestHandler, str], bool] | None = None
        self.codes = True
        stand_in = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:  # the name that http.server looks for
                stand_in.get(self)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # a client that hangs up, which is what it should do

        self.server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def get(self, http: BaseHTTPRequestHandler) -> None:
        asked = http.headers.get("range", "")
        if blob := re.fullmatch(r"/blobs/(\w+)", http.path):
            self.requests.append((f"blob {blob[1]}", asked, http.headers.get("authorization", "")))
            self.give(http, self.blobs[blob[1]])
            return
        path = re.fullmatch(r"/org/model/resolve/([^/]+)/([\w.-]+)", http.path)
        file = path[2] if path else http.path
        self.requests.append((file, asked, http.headers.get("authorization", "")))
        if self.answer and self.answer(http, file):
            return
        if not path:
            self.fail(http, 401, "RepoNotFound")
        elif unquote(path[1]) not in self.revisions:
            self.fail(http, 404, "RevisionNotFound")
        elif file not in self.files:
            self.fail(http, 404, "EntryNotFound")
        else:
            commit = self.revisions[unquote(path[1])]
            data = self.files[file]
            if file.endswith(".safetensors"):  # large files lie elsewhere
                name = f"b{len(self.blobs)}"
                self.blobs[name] = data
                headers = {"location": f"/blobs/{name}", "x-repo-commit": commit}
                self.reply(http, 302, b"", headers)
            else:
                self.reply(http, 200, data, {"x-repo-commit": commit})

    def give(self, http: BaseHTTPRequestHandler, data: bytes) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", http.headers.get("range", ""))
        if not asked:
            self.reply(http, 200, data)
            return
        first, last = int(asked[1]), min(int(asked[2]), len(data) - 1)
        headers = {"content-range": f"bytes {first}-{last}/{len(data)}"}
        self.reply(http, 206, data[first : last + 1], headers)

    def fail(self, http: BaseHTTPRequestHandler, status: int, code: str = "") -> None:
        headers = {"x-error-code": code} if code and self.codes else {}
        self.reply(http, status, b"<html>no</html>", headers)

    def reply(
        self,
        http: BaseHTTPRequestHandler,
        status: int,
        data: bytes,
        headers: dict[str, str] | None = None,
    ) -> None:
        http.send_response(status)
        for name, value in ({"content-length": str(len(data))} | (headers or {})).items():
            http.send_header(name, value)
        http.end_headers()
        http.wfile.write(data)
        self.sent += len(data)

    def asked_for(self) -> list[str]:
        return [file for file, _, _ in self.requests]


@pytest.fixture(autouse=True)
def _own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An empty cache, no token, no proxy, and a new session, whatever the machine has."""
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGING", "TRANSFORMERS_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    huggingface_hub.close_session()
    yield
    huggingface_hub.close_session()


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    server = StandIn()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    yield server
    huggingface_hub.close_session()
    server.close()


def cached(folder: Path, files: dict[str, bytes], ref: str = "main", commit: str = COMMIT) -> Path:
    """Write a snapshot as huggingface_hub lays it out, and return its folder."""
    model = folder / "cache" / "models--org--model"
    snapshot = model / "snapshots" / commit
    snapshot.mkdir(parents=True)
    for name, data in files.items():
        (snapshot / name).write_bytes(data)
    reference = model / "refs" / ref
    reference.parent.mkdir(parents=True, exist_ok=True)
    reference.write_text(commit, encoding="ascii")
    return snapshot


def unavailable(reference: str = "hf:org/model", *, weights: bool = False) -> UnavailableError:
    with pytest.raises(UnavailableError) as caught:
        fetch_model_files(reference, weights=weights)
    error = caught.value
    assert error.hint
    assert error.where
    assert (error.message + error.hint + error.where).isprintable()
    assert TOKEN not in str(error) + error.hint
    return error


def test_a_model_with_one_file(stand_in: StandIn) -> None:
    stand_in.files["model.safetensors"] = shard(LAYER.format(0), LAYER.format(1))
    files = fetch_model_files("hf:org/model")
    assert files == HubFiles(
        config_text=CONFIG.decode(),
        repository="org/model",
        revision=COMMIT,
        weights=files.weights,
    )
    assert files.weights is not None
    assert files.weights.total_bytes == 16
    assert files.weights.by_layer == {0: 8, 1: 8}
    assert stand_in.asked_for() == [
        "config.json",
        "model.safetensors.index.json",
        "model.safetensors",
        "blob b0",
    ]
    assert all(token == f"Bearer {TOKEN}" for _, _, token in stand_in.requests)


def test_only_the_config_when_no_weights_are_wanted(stand_in: StandIn) -> None:
    assert fetch_model_files("org/model", weights=False).weights is None
    assert stand_in.asked_for() == ["config.json"]


def test_a_model_with_shards(stand_in: StandIn) -> None:
    names = {f"model-{n:05}-of-00020.safetensors": (LAYER.format(n), f"x{n}") for n in range(20)}
    stand_in.files["model.safetensors.index.json"] = index_of(names)
    stand_in.files |= {file: shard(*tensors, elements=5) for file, tensors in names.items()}
    weights = fetch_model_files("hf:org/model").weights
    assert weights is not None
    assert (weights.total_bytes, weights.shards, weights.tensors) == (200, 20, 40)
    ranges = {asked for file, asked, _ in stand_in.requests if file.startswith("blob")}
    assert ranges == {"bytes=0-131071"}


def test_weights_are_not_downloaded(stand_in: StandIn) -> None:
    """Ten megabytes of data and a header longer than the first part."""
    stand_in.files["model.safetensors"] = shard("lm_head.weight", elements=10**7, padding=300_000)
    weights = fetch_model_files("hf:org/model").weights
    assert weights is not None
    assert weights.total_bytes == 10**7
    assert stand_in.sent < 500_000
    asked = [asked for file, asked, _ in stand_in.requests if file.startswith("blob")]
    assert asked[0] == "bytes=0-131071"
    assert re.fullmatch(r"bytes=8-3000\d\d", asked[1])


def test_all_files_are_of_one_commit(stand_in: StandIn) -> None:
    seen = []

    def answer(http: BaseHTTPRequestHandler, _: str) -> bool:
        seen.append(http.path.split("/")[4])
        return False

    stand_in.answer = answer
    stand_in.files["model.safetensors"] = shard("x")
    assert fetch_model_files("hf:org/model").revision == COMMIT
    assert seen == ["main", COMMIT, COMMIT]
    seen.clear()
    assert fetch_model_files("hf:org/model@refs/pr/1").revision == OTHER
    assert seen == ["refs%2Fpr%2F1", OTHER, OTHER]


def test_a_server_that_names_no_commit(stand_in: StandIn) -> None:
    def answer(http: BaseHTTPRequestHandler, file: str) -> bool:
        if file == "config.json":
            stand_in.reply(http, 200, CONFIG)
        return file == "config.json"

    stand_in.answer = answer
    assert fetch_model_files("hf:org/model@main").revision == "main"


@pytest.mark.usefixtures("stand_in")
def test_no_safetensors_is_a_note() -> None:
    files = fetch_model_files("hf:org/model")
    assert files.weights is None
    assert files.notes == ("weights unknown: the repository has no model.safetensors",)


def test_a_shard_that_is_missing(stand_in: StandIn) -> None:
    stand_in.files["model.safetensors.index.json"] = index_of({"a.safetensors": ("x",)})
    with pytest.raises(InputError, match=r"the repository has no a\.safetensors"):
        fetch_model_files("hf:org/model")


@pytest.mark.parametrize(
    ("status", "code", "message", "hint"),
    [
        (401, "GatedRepo", "the repository is gated", "hf auth login"),
        (403, "GatedRepo", "the repository is gated", "ask for access"),
        (403, "", "no access to the repository", "ask for access"),
        (401, "RepoNotFound", "does not exist, or it is private", "HF_TOKEN"),
        (404, "RepoNotFound", "does not exist, or it is private", "HF_TOKEN"),
        (401, "", "does not exist, or it is private", "HF_TOKEN"),
        (404, "RevisionNotFound", "no revision 'v1'", "a branch, a tag or a commit"),
        (404, "EntryNotFound", "the repository has no config.json", "GGUF"),
        (404, "", "the Hub knows no such repository, or it has no config.json", "check ORG"),
        (429, "", "too many requests", "wait"),
        (500, "", "answers with status 500 for config.json", "try again"),
        (503, "", "answers with status 503 for config.json", "try again"),
        (418, "x\x1b[0m", "answers with status 418 for config.json", "try again"),
    ],
)
def test_refusals_of_the_hub(
    stand_in: StandIn, status: int, code: str, message: str, hint: str
) -> None:
    def answer(http: BaseHTTPRequestHandler, _: str) -> bool:
        stand_in.fail(http, status, code)
        return True

    stand_in.answer = answer
    error = unavailable("hf:org/model@v1")
    assert message in error.message
    assert hint in error.hint
    assert error.where == "hf:org/model@v1"


def test_refusals_while_weights_are_read(stand_in: StandIn) -> None:
    def answer(http: BaseHTTPRequestHandler, file: str) -> bool:
        if file.endswith(".safetensors"):
            stand_in.fail(http, 500)
        return file.endswith(".safetensors")

    stand_in.answer = answer
    assert "status 500 for model.safetensors" in unavailable(weights=True).message
    names = {f"s{n}.safetensors": (f"t{n}",) for n in range(30)}
    stand_in.files["model.safetensors.index.json"] = index_of(names)
    assert "status 500 for s0.safetensors" in unavailable(weights=True).message


@pytest.mark.parametrize("data", [b"\xff\xfe", b"a\xff"])
def test_a_config_that_is_no_text(stand_in: StandIn, data: bytes) -> None:
    stand_in.files["config.json"] = data
    with pytest.raises(InputError, match="not UTF-8 text") as caught:
        fetch_model_files("hf:org/model")
    assert caught.value.where == "hf:org/model/config.json:1"


def test_a_config_that_never_ends(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "MAX_CHARACTERS", 1000)
    stand_in.files["config.json"] = b"x" * 10**6
    # The limit of the decoder is the larger one here; what counts is that no more is read.
    assert len(fetch_model_files("hf:org/model", weights=False).config_text) == 1001


@pytest.mark.parametrize("index", [b"{", b"[]", b"{}", b'{"weight_map": {"a": "../b"}}', b"\xff"])
def test_garbage_for_an_index(stand_in: StandIn, index: bytes) -> None:
    stand_in.files["model.safetensors.index.json"] = index
    with pytest.raises(InputError) as caught:
        fetch_model_files("hf:org/model")
    assert caught.value.where.startswith("hf:org/model/model.safetensors.index.json")


@pytest.mark.parametrize("data", [b"", b"x", b"\xff" * 99, shard("x")[:-1], shard("x") + b"x"])
def test_garbage_for_weights(stand_in: StandIn, data: bytes) -> None:
    stand_in.files["model.safetensors"] = data
    with pytest.raises(KvcalcError) as caught:
        fetch_model_files("hf:org/model")
    assert caught.value.where.startswith("hf:org/model")


def parts(stand_in: StandIn, status: int, headers: dict[str, str], data: bytes) -> None:
    """Answer every request for a safetensors file with this."""

    def answer(http: BaseHTTPRequestHandler, file: str) -> bool:
        if file == "model.safetensors":
            stand_in.reply(http, status, data, headers)
        return file == "model.safetensors"

    stand_in.answer = answer


def test_a_server_without_ranges(stand_in: StandIn) -> None:
    """A short header is in the beginning of the whole file; for a long one nobody reads on."""
    parts(stand_in, 200, {}, shard("x", elements=10**6))
    weights = fetch_model_files("hf:org/model").weights
    assert weights is not None
    assert weights.total_bytes == 10**6
    parts(stand_in, 200, {}, shard("x", elements=10**6, padding=200_000))
    assert "another part than the one asked for" in unavailable(weights=True).message


@pytest.mark.parametrize(
    "part",
    ["", "bytes */99", "bytes 0-9/*", "bytes 5-98/99", "bytes 0-99/99", "bytes 9-0/99", "x"],
)
def test_parts_that_lie(stand_in: StandIn, part: str) -> None:
    parts(stand_in, 206, {"content-range": part} if part else {}, shard("x"))
    assert "another part than the one asked for" in unavailable(weights=True).message


def test_parts_that_are_too_short(stand_in: StandIn) -> None:
    parts(stand_in, 206, {"content-range": "bytes 0-999/1000"}, shard("x"))
    assert "the connection ended early" in unavailable(weights=True).message


def test_a_file_whose_size_is_not_said(stand_in: StandIn) -> None:
    def answer(http: BaseHTTPRequestHandler, file: str) -> bool:
        if file == "model.safetensors":
            http.send_response(200)
            http.send_header("connection", "close")
            http.end_headers()
            http.wfile.write(shard("x"))
        return file == "model.safetensors"

    stand_in.answer = answer
    assert "does not say how large it is" in unavailable(weights=True).message


def test_a_file_that_changes_while_it_is_read(stand_in: StandIn) -> None:
    files = [shard("x", padding=200_000), shard("x", padding=200_001)]

    def answer(http: BaseHTTPRequestHandler, file: str) -> bool:
        if file == "model.safetensors":
            stand_in.give(http, files.pop(0))
        return file == "model.safetensors"

    stand_in.answer = answer
    assert "the server changes its answers" in unavailable(weights=True).message


def test_a_proxy_that_refuses(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in knows no CONNECT, which is what a proxy is asked for."""
    monkeypatch.setenv("HTTPS_PROXY", stand_in.url)
    monkeypatch.setenv("HF_ENDPOINT", "https://example.invalid")
    error = unavailable()
    assert error.message == "the proxy before example.invalid refuses the connection"
    assert "HTTPS_PROXY" in error.hint


def test_offline_by_huggingface_hub_itself(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads the variable once, when it is imported."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE forbids" in unavailable().message
    assert stand_in.requests == []


def test_a_slow_server(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()

    def answer(*_: object) -> bool:
        done.wait(20)
        return True

    stand_in.answer = answer
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "1")
    error = unavailable()
    done.set()
    assert "did not answer within 1 s" in error.message
    assert "HF_HUB_DOWNLOAD_TIMEOUT" in error.hint


def test_a_server_that_drips(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(http: BaseHTTPRequestHandler, _: str) -> bool:
        http.send_response(200)
        http.send_header("content-length", "100000")
        http.end_headers()
        for _second in range(200):
            http.wfile.write(b" ")
            time.sleep(0.05)
        return True

    stand_in.answer = answer
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "1")
    monkeypatch.setattr(hub, "_TOTAL_SECONDS", 0.1)
    assert "it does not come in within 1 s" in unavailable().message


def _endless(http: BaseHTTPRequestHandler, part: bytes) -> None:
    """Send a part again and again, until the other end hangs up or 20 s are over."""
    over = time.monotonic() + 20
    with contextlib.suppress(OSError):
        while time.monotonic() < over:
            http.wfile.write(part)
            http.wfile.flush()
            time.sleep(0.01)


@pytest.mark.parametrize(
    "begun",
    [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nX: "],
    ids=["continue for ever", "headers for ever", "a header for ever"],
)
def test_answers_that_never_begin(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    """A server that goes on talking is never silent: the whole exchange has a limit."""
    parts = {0: b"HTTP/1.1 100 Continue\r\n\r\n", 17: b"A: b\r\n", 20: b"x"}

    def answer(http: BaseHTTPRequestHandler, _: str) -> bool:
        http.wfile.write(begun)
        _endless(http, parts[len(begun)])
        return True

    stand_in.answer = answer
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "1")
    monkeypatch.setattr(hub, "_TOTAL_SECONDS", 0.1)
    start = time.monotonic()
    unavailable()
    assert time.monotonic() - start < HANG / 2


def test_the_files_of_a_model_have_one_limit_of_time(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each shard alone comes in soon enough: a thousand of them do not."""
    names = [f"s{i}.safetensors" for i in range(1_000)]
    stand_in.files["model.safetensors.index.json"] = index_of({n: (f"t-{n}",) for n in names})

    def answer(http: BaseHTTPRequestHandler, file: str) -> bool:
        if file not in names:
            return False
        time.sleep(0.5)
        stand_in.reply(http, 200, shard(f"t-{file}"), {})
        return True

    stand_in.answer = answer
    monkeypatch.setattr(hub, "_EXCHANGE_SECONDS", 1.0)
    monkeypatch.setenv("HF_HUB_DOWNLOAD_TIMEOUT", "1")
    error = unavailable(weights=True)
    assert re.search("took all the time|does not come in within", error.message)
    assert len(stand_in.requests) < 500


def test_the_files_of_a_model_have_one_limit_of_size(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"s{i}.safetensors" for i in range(100)]
    stand_in.files["model.safetensors.index.json"] = index_of({n: (f"t-{n}",) for n in names})
    for name in names:
        stand_in.files[name] = shard(f"t-{name}", padding=20_000)
    assert len(fetch_model_files("hf:org/model").notes) == 0
    monkeypatch.setattr(hub, "_EXCHANGE_BYTES", 2**20)
    asked = len(stand_in.requests)
    assert "more than 1 MiB of the model's files" in unavailable(weights=True).message
    assert len(stand_in.requests) - asked < 2 * 80


def test_bodies_of_redirects_are_not_read(stand_in: StandIn) -> None:
    sent: list[int] = []

    def answer(http: BaseHTTPRequestHandler, file: str) -> bool:
        if file != "config.json" or sent:
            return False
        http.send_response(302)
        http.send_header("location", http.path)
        http.send_header("content-length", str(10**12))
        http.end_headers()
        with contextlib.suppress(OSError):
            while len(sent) < 10_000:
                sent.append(http.wfile.write(b"x" * 100_000))
        return True

    stand_in.answer = answer
    found = fetch_model_files("hf:org/model", weights=False)
    assert found.config_text == CONFIG.decode()
    assert len(sent) < 1_000  # what buffers between the two hold


def test_no_other_server_is_asked_for_a_token(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A token near its end, or one of a workflow, is not renewed, and nothing is written."""
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setenv("HF_OIDC_RESOURCE", "org/model")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    (tmp_path / "token").write_text(f"{TOKEN}\n", encoding="utf-8")
    fetch_model_files("hf:org/model", weights=False)
    assert [token for _, _, token in stand_in.requests] == [f"Bearer {TOKEN}"]
    assert [path.name for path in tmp_path.iterdir()] == ["token"]
    (tmp_path / "token").unlink()
    fetch_model_files("hf:org/model", weights=False)
    assert stand_in.requests[-1][2] == ""


def test_redirects_without_end(stand_in: StandIn) -> None:
    def answer(http: BaseHTTPRequestHandler, _: str) -> bool:
        stand_in.reply(http, 302, b"", {"location": http.path})
        return True

    stand_in.answer = answer
    assert "more than 5 redirects" in unavailable().message


def test_a_token_stays_with_its_host(stand_in: StandIn) -> None:
    """Large files lie on another host, which must not see the token."""
    elsewhere = StandIn()
    elsewhere.blobs["b"] = shard("x")
    location = {"location": f"http://localhost:{elsewhere.server.server_address[1]}/blobs/b"}
    parts(stand_in, 302, location, b"")
    try:
        weights = fetch_model_files("hf:org/model").weights
        assert weights is not None
        assert elsewhere.requests == [("blob b", "bytes=0-131071", "")]
    finally:
        huggingface_hub.close_session()
        elsewhere.close()


def test_nobody_answers() -> None:
    error = unavailable()
    assert error.message == "127.0.0.1:9 cannot be reached (ConnectError)"
    assert "path of a local config.json" in error.hint


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("HF_ENDPOINT", "ftp://x", "HF_ENDPOINT 'ftp://x' is no address"),
        ("HF_ENDPOINT", "nonsense", "HF_ENDPOINT 'nonsense' is no address"),
        ("HF_ENDPOINT", "http://user:pass\x1b@127.0.0.1:x", "HF_ENDPOINT"),
        ("HTTP_PROXY", "http://127.0.0.1:9", "cannot be reached"),
        ("HTTP_PROXY", "nonsense://x", "cannot be reached"),
        ("HF_TOKEN", f"{TOKEN}\n{TOKEN}é", "the token cannot be sent"),
    ],
)
def test_settings_that_cannot_be(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://example.invalid")
    monkeypatch.setenv(variable, value)
    error = unavailable()
    assert message in error.message
    assert "pass" not in error.message


def test_the_cache_comes_first(tmp_path: Path) -> None:
    """No server is there to ask, and huggingface_hub need not be installed."""
    cached(tmp_path, {"config.json": CONFIG, "model.safetensors": shard("x", elements=3)})
    files = fetch_model_files("hf:org/model")
    assert (files.config_text, files.revision, files.cached) == (CONFIG.decode(), COMMIT, True)
    assert files.weights is not None
    assert files.weights.total_bytes == 3
    assert fetch_model_files(f"hf:org/model@{COMMIT}") == files
    assert unavailable(f"hf:org/model@{OTHER}")
    assert unavailable("hf:org/model@v1")
    assert unavailable("hf:org/other")


def test_revisions_in_the_cache(tmp_path: Path) -> None:
    cached(tmp_path, {"config.json": CONFIG})
    cached(tmp_path, {"config.json": b'{"other": 1}'}, ref="refs/pr/1", commit=OTHER)
    assert fetch_model_files("org/model@refs/pr/1", weights=False).config_text == '{"other": 1}'
    assert fetch_model_files("org/model", weights=False).config_text == CONFIG.decode()


def test_symbolic_links_of_the_cache(tmp_path: Path) -> None:
    snapshot = cached(tmp_path, {})
    blob = snapshot.parents[1] / "blobs" / "abc"
    blob.parent.mkdir()
    blob.write_bytes(CONFIG)
    try:
        (snapshot / "config.json").symlink_to(blob)
    except OSError:  # Windows without the right to make links, where the cache has none either
        (snapshot / "config.json").write_bytes(CONFIG)
    assert fetch_model_files("org/model", weights=False).cached
    blob.unlink()
    (snapshot / "config.json").unlink()
    assert unavailable()


@pytest.mark.parametrize("ref", [b"", b"../x", b"abc", b"\xff" * 40, COMMIT.upper().encode()])
def test_damaged_references_in_the_cache(tmp_path: Path, ref: bytes) -> None:
    cached(tmp_path, {"config.json": CONFIG})
    (tmp_path / "cache/models--org--model/refs/main").write_bytes(ref)
    assert unavailable()


def test_a_cached_config_with_weights_on_the_hub(tmp_path: Path, stand_in: StandIn) -> None:
    cached(tmp_path, {"config.json": b'{"cached": 1}'}, commit=OTHER)
    stand_in.files["model.safetensors"] = shard("x")
    files = fetch_model_files("hf:org/model")
    assert (files.config_text, files.revision) == ('{"cached": 1}', OTHER)
    assert files.weights is not None
    assert "config.json" not in stand_in.asked_for()


def test_a_cache_that_holds_some_of_the_shards(tmp_path: Path, stand_in: StandIn) -> None:
    names = {"a.safetensors": ("x",), "b.safetensors": ("y",)}
    index = {"model.safetensors.index.json": index_of(names)}
    snapshot = cached(tmp_path, {"config.json": CONFIG, "a.safetensors": shard("x")} | index)
    stand_in.files |= index | {"a.safetensors": shard("x"), "b.safetensors": shard("y")}
    weights = fetch_model_files("hf:org/model").weights
    assert weights is not None
    assert (weights.total_bytes, weights.shards) == (16, 2)
    (snapshot / "b.safetensors").write_bytes(shard("y"))
    stand_in.requests.clear()
    assert fetch_model_files("hf:org/model").weights == weights
    assert stand_in.requests == []


def test_a_cached_config_and_nobody_to_ask_for_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cached(tmp_path, {"config.json": CONFIG})
    (note,) = fetch_model_files("hf:org/model").notes
    assert note == "weights unknown: 127.0.0.1:9 cannot be reached (ConnectError)"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    files = fetch_model_files("hf:org/model")
    assert files.weights is None
    assert "HF_HUB_OFFLINE forbids" in files.notes[0]
    assert fetch_model_files("hf:org/model", weights=False).notes == ()


def test_damaged_files_in_the_cache(tmp_path: Path) -> None:
    snapshot = cached(tmp_path, {"config.json": CONFIG, "model.safetensors": b"x"})
    with pytest.raises(InputError, match="too short"):
        fetch_model_files("hf:org/model")
    (snapshot / "model.safetensors.index.json").mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        fetch_model_files("hf:org/model")
    (snapshot / "config.json").write_bytes(b"\xff")
    with pytest.raises(InputError, match="not UTF-8"):
        fetch_model_files("hf:org/model")


@pytest.mark.parametrize("value", ["1", "true", "YES", "on"])
@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    error = unavailable()
    assert "HF_HUB_OFFLINE forbids to ask the Hub" in error.message
    assert stand_in.requests == []


def test_without_the_extra(
    tmp_path: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    error = unavailable()
    assert "the extra to ask the Hub is not installed" in error.message
    assert "pip install kvcalc[hub]" in error.hint
    assert stand_in.requests == []
    cached(tmp_path, {"config.json": CONFIG})
    files = fetch_model_files("hf:org/model")
    assert files.cached
    assert "not installed" in files.notes[0]


def test_an_extra_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub, "__version__", "0.36.2")
    assert "older than 1.0" in unavailable().message


def test_an_extra_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "huggingface_hub"
    package.mkdir()
    (package / "__init__.py").write_text("int('x')", encoding="utf-8")
    with monkeypatch.context() as patch:
        for name in list(sys.modules):
            if name.partition(".")[0] == "huggingface_hub":
                patch.delitem(sys.modules, name)
        patch.syspath_prepend(str(tmp_path))
        assert "cannot be loaded (ValueError)" in unavailable().message


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answers of huggingface_hub itself, in a process of its own: it reads them once."""
    script = "import huggingface_hub.constants as c; print(c.HF_HUB_CACHE)"
    cases: list[dict[str, str]] = [
        {},
        {"HF_HOME": "/a"},
        {"XDG_CACHE_HOME": "/x"},
        {"HF_HOME": "~/a", "HUGGINGFACE_HUB_CACHE": "/l"},
        {"HF_HUB_CACHE": "$HF_HOME/c", "HF_HOME": "/a"},
    ]
    for name in ("HF_HOME", "XDG_CACHE_HOME", "HUGGINGFACE_HUB_CACHE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script],
            env=dict(os.environ) | case,
            stdout=subprocess.PIPE,
            text=True,
        )
        for case in cases
    ]
    for case, process in zip(cases, running, strict=True):
        with monkeypatch.context() as patch:
            for name, value in case.items():
                patch.setenv(name, value)
            assert os.path.normpath(cache_folder()) == os.path.normpath(
                process.communicate(timeout=60)[0].strip()
            )


@pytest.mark.parametrize(
    ("reference", "repository", "revision"),
    [
        ("hf:Qwen/Qwen3-8B", "Qwen/Qwen3-8B", "main"),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-8B", "main"),
        ("hf:01-ai/Yi-1.5-9B@v1.0", "01-ai/Yi-1.5-9B", "v1.0"),
        ("hf:a/b@refs/pr/12", "a/b", "refs/pr/12"),
        (f"hf:a_/_b@{COMMIT}", "a_/_b", COMMIT),
    ],
)
def test_references(reference: str, repository: str, revision: str) -> None:
    found = parse(reference)
    assert (found.repository, found.revision) == (repository, revision)
    assert parse(str(found)) == found


@pytest.mark.parametrize(
    "reference",
    [
        *("", "hf:", "hf:a", "hf:a/", "hf:/b", "hf:a/b/c", "hf:a//b", "hf:../b", "hf:a/.."),
        "hf:a/.",
        *("hf:a b/c", "hf:a/b\n", "hf:-a/b", "hf:a/b-", "hf:a/b.", "hf:a--b/c", "hf:a/b..c"),
        *("hf:é/b", "hf:a/b.git", "hf:hf:a/b", "hf:a\\b", "hf:a/b?x", "hf:a/b#x", "hf:a/%2e"),
        "hf:" + "a" * 60 + "/" + "b" * 60,
        *("hf:a/b@", "hf:a/b@ ", "hf:a/b@..", "hf:a/b@x/../y", "hf:a/b@/x", "hf:a/b@x/"),
        "hf:a/b@x\n",
        *("hf:a/b@-x", "hf:a/b@x//y", "hf:a/b@C:\\x", "hf:a/b@é", "hf:a/b@x@y", "hf:a/b@x?y"),
        "hf:a/b@" + "x" * 201,
        "hf:a\0/b",
    ],
)  # fmt: skip
def test_references_that_are_none(reference: str) -> None:
    with pytest.raises(UsageError) as caught:
        fetch_model_files(reference)
    assert caught.value.hint
    assert caught.value.message.isprintable()


def test_nothing_is_imported_before_it_is_needed() -> None:
    script = "import sys, kvcalc.models.hub; sys.exit('huggingface_hub' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
