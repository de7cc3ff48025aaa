"""Which files are read, what stands beside them, and files that harm: one line, within seconds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.core.errors import InputError
from kvcalc.manifests import Folder, find, read_paths, read_source
from kvcalc.manifests.reading import MAX_SERVERS
from kvcalc.manifests.sources import MAX_BYTES, PassedOverError
from tests.guards import HANG

NAMES = (
    "x.py",
    "x.yaml",
    "x.sh",
    "Dockerfile",
    "x.service",
    "x.md",
    "x.tf",
    "x.tpl",
    "-",
    "Modelfile",
)


def bomb() -> bytes:
    rows = ["a0: &a0 [vllm serve]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)]
    return "\n".join(rows).encode()


HOSTILE: dict[str, Callable[[], bytes]] = {
    "bomb": bomb,
    "cycle": lambda: b"vllm: &a [*a]",
    "tabs": lambda: b"services:\n\ta: {image: vllm}\n",
    "templates": lambda: b"a: {{ vllm }}\n" * 200_000,
    "braces": lambda: b"vllm {{" * 500_000,
    "zero": lambda: b"vllm\n\0\0",
    "binary": lambda: bytes(range(256)) * 1000,
    "50 MB": lambda: b"vllm: 1\n" * 6_250_000,
    "lists": lambda: b"- vllm\n" * (MAX_BYTES // 7),
    "deep": lambda: b"vllm: " + b"[" * (MAX_BYTES - 6),
    "documents": lambda: b"---\nvllm\n" * (MAX_BYTES // 9),
    "newlines": lambda: b"vllm" + b"\n" * (MAX_BYTES - 4),
    "blanks": lambda: b"vllm" + b" " * (MAX_BYTES - 4),
    "quotes": lambda: b"vllm " + b'"' * (MAX_BYTES - 5),
    "backquotes": lambda: b"vllm serve " + b"`" * 250_001,
    "parentheses": lambda: b"vllm serve " + b"$(" * 100_000,
    "conditions": lambda: b"vllm\n" + b"if x; then\n" * 20_000,
    "doubled": lambda: b"a=vllm\n" + b'a="$a $a"\n' * 60 + b"vllm serve $a\n",
    "array": lambda: b"a=(vllm)\n" + b'a=("${a[@]}" "${a[@]}")\n' * 60 + b'vllm serve "${a[@]}"\n',
    "calls": lambda: b"".join(b"f%d() { f%d; f%d; }\n" % (i, i + 1, i + 1) for i in range(40))
    + b"f40() { vllm serve x; }\nf0\n",
    "open heredocs": lambda: b"cat <<A vllm\n" * 20_000,
    "defaults": lambda: b'services: {a: {image: vllm/vllm-openai, command: "'
    + b"${A:-" * 40_000
    + b'"}}',
    "environment": lambda: b"FROM vllm/vllm-openai\n" + b"ENV A=$A$A\n" * 3000 + b'CMD ["$A"]\n',
    "continued": lambda: b"[Service]\n" + b"ExecStart=vllm serve x \\\n" * 100_000,
    "fences": lambda: (b"`" * 5_000 + b"\nvllm\n") * 300,
    "servers": lambda: b"vllm serve a\n" * 15_000,
    "nested lists": lambda: b"vllm = " + b"[" * 150 + b"]" * 150 + b"\n",
    "sums": lambda: b"vllm = " + b"a + " * 20_000 + b"a\n",
    "lists of words": lambda: b"x = ['vllm', 'serve', *x]\n" * 20_000,
    "calls of calls": lambda: b"x = " + b"str(" * 90 + b"'vllm'" + b")" * 90 + b"\n",
}  # fmt: skip


@pytest.mark.parametrize("kind", HOSTILE)
def test_files_that_harm(kind: str) -> None:
    """Under any name: one line and a hint, or at most a few servers."""
    text = HOSTILE[kind]()
    for name in NAMES:
        before = time.process_time()
        try:
            found = read_source(name, text)
        except InputError as error:
            assert "\n" not in str(error)
            assert error.hint
            assert error.where.startswith(name)
        else:
            assert len(found) <= MAX_SERVERS
        assert time.process_time() - before < HANG, name


@pytest.mark.parametrize(
    ("text", "name", "where", "message"),
    [
        (b"kind: Pod\n\tspec: 1\n", "x.yaml", "x.yaml:2", "tab"),
        (b"a\nb\0", "x.sh", "x.sh:2", "not text"),
        (b"vllm serve 'a\n", "x.sh", "x.sh:1", "nothing closes"),
        (b"x" * (MAX_BYTES + 1), "x.yaml", "x.yaml", "larger than 8 MiB"),
        (b"vllm serve a\n" * 5_000, "x.sh", "x.sh", "5000 servers"),
        (b"", "-", "-", "starts no server"),
    ],
)
def test_refusals(text: bytes, name: str, where: str, message: str) -> None:
    """What is the matter, and on which line."""
    with pytest.raises(InputError, match=message) as caught:
        read_source(name, text)

    assert caught.value.where == where


def test_other_encodings() -> None:
    """A byte order mark, Windows line ends, UTF-16 as PowerShell writes it."""
    text = "#!/bin/sh\r\nvllm serve a \\\r\n  --dtype half\r\n"

    for encoding in ("utf-8", "utf-8-sig", "utf-16"):
        (found,) = read_source("x.sh", text.encode(encoding))
        assert [word.text for word in found.words] == ["vllm", "serve", "a", "--dtype", "half"]
        assert found.words[-1].line == 3


def test_folders_are_walked(tmp_path: Path) -> None:
    """Hidden, installed and unrelated files are passed over, and so is a link to a file in it."""
    serve = "vllm serve a\n"
    for path in ("a.sh", "b/c.sh", ".git/d.sh", "node_modules/e.sh", "b/f.txt"):
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(serve, encoding="utf-8")
    (tmp_path / "b/other.yaml").write_text("a: 1\n", encoding="utf-8")
    (tmp_path / "b/binary.yaml").write_bytes(bytes(range(256)))
    (tmp_path / "b/link.sh").symlink_to(tmp_path / "a.sh")
    (tmp_path / "b/loop").symlink_to(tmp_path)
    (tmp_path / "broken.yaml").write_text("vllm: [\n", encoding="utf-8")
    (tmp_path / "wide.sh").write_bytes(serve.encode("utf-16"))

    found = [Path(source.name).name for source in find([str(tmp_path)])]
    assert sorted(found) == ["a.sh", "broken.yaml", "c.sh", "wide.sh"]
    assert not any(source.given or source.fault for source in find([str(tmp_path)]))

    result = read_paths([str(tmp_path)])
    assert len(result.servers) == 3
    assert ["broken.yaml" in str(error) for error in result.passed] == [True]
    with pytest.raises(InputError, match="not valid YAML"):
        read_paths([str(tmp_path / "broken.yaml")])
    with pytest.raises(InputError, match="no such file"):
        read_paths([str(tmp_path / "none")])


def test_links_of_a_folder(tmp_path: Path) -> None:
    """What Kubernetes mounts is read; a link that leads elsewhere or nowhere is told."""
    mount, other = tmp_path / "mount", tmp_path / "other"
    for folder in (mount / "..data", other):
        folder.mkdir(parents=True)
        (folder / "a.sh").write_text("vllm serve a\n", encoding="utf-8")
    (other / "b.sh").write_text("echo\n", encoding="utf-8")
    (mount / "a.sh").symlink_to("..data/a.sh")
    (mount / "out.sh").symlink_to(other / "a.sh")
    (mount / "unrelated.sh").symlink_to(other / "b.sh")
    (mount / "loop.yaml").symlink_to("loop.yaml")
    (mount / "nowhere.yaml").symlink_to("none.yaml")

    found = {Path(s.name).name: s.fault for s in find([str(mount)])}
    assert sorted(found) == ["a.sh", "loop.yaml", "nowhere.yaml", "out.sh"]
    assert found["a.sh"] is None
    assert isinstance(found["out.sh"], PassedOverError)
    assert "no such file" in str(found["nowhere.yaml"])
    assert "too many levels of symbolic links" in str(found["loop.yaml"])


def test_what_of_a_folder_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, a folder, a pipe: each is told by its path."""
    (tmp_path / "secret.yaml").write_text("a: 1\n", encoding="utf-8")
    (tmp_path / "inner").mkdir()
    os.mkfifo(tmp_path / "pipe.yaml")
    real, scan = open, os.scandir

    def opened(path: Any, *arguments: Any, **options: Any) -> Any:
        if str(path).endswith("secret.yaml"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *arguments, **options)

    def scanned(path: Any) -> Any:
        if str(path).endswith("inner"):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr("builtins.open", opened)
    monkeypatch.setattr("os.scandir", scanned)
    found = {Path(s.name).name: str(s.fault) for s in find([str(tmp_path)])}

    assert sorted(found) == ["inner", "pipe.yaml", "secret.yaml"]
    assert "permission denied" in found["inner"]
    assert "permission denied" in found["secret.yaml"]
    assert "named pipe" in found["pipe.yaml"]


def test_large_and_deep_files_of_a_folder(tmp_path: Path) -> None:
    """Too large a file is told where it names an engine; a model's own JSON is passed over."""
    (tmp_path / "big.yaml").write_bytes(b"# vllm\n" * (MAX_BYTES // 7 + 1))
    (tmp_path / "data.yaml").write_bytes(b"# data\n" * (MAX_BYTES // 7 + 1))
    (tmp_path / "tokenizer.json").write_bytes(b'{"v": ["ollama"' + b', "x"' * 600_000 + b"]}")
    deep = tmp_path.joinpath(*["d"] * 30)
    deep.mkdir(parents=True)
    (deep / "a.sh").write_text("vllm serve a\n", encoding="utf-8")

    found = {Path(s.name).name: s.fault for s in find([str(tmp_path)])}
    assert sorted(found) == ["big.yaml", "d"]
    assert "larger than 8 MiB" in str(found["big.yaml"])
    assert "folders deep" in str(found["d"])


def test_stdin() -> None:
    """`-` is told by what it holds."""
    text = b"kind: Pod\nspec: {containers: [{command: [vllm, serve, a]}]}"
    (server,) = read_paths(["-"], stdin=text).servers

    assert (server.invocation.file, server.invocation.carrier) == ("-", "Pod")


def test_only_files_beside_are_read(tmp_path: Path) -> None:
    """Not above the parent's folder, no absolute ones, no large ones."""
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "secret").write_text("x", encoding="utf-8")
    (tmp_path / "a" / "values.yaml").write_text("y", encoding="utf-8")
    (inner / "z").write_text("z", encoding="utf-8")
    (inner / "big").write_bytes(b"x" * (2**20 + 1))
    folder = Folder(str(inner))

    assert folder.read("z") == "z"
    assert folder.read("../values.yaml") == "y"
    for name in ("../../secret", str(tmp_path / "secret"), "big", ".", "none", "a\0b"):
        assert folder.read(name) is None


PIECES = st.sampled_from(
    [
        *(
            "vllm serve a",
            "--max-model-len",
            "8192",
            "kind: Pod",
            "spec:",
            "containers:",
            "- image: ",
        ),
        *("vllm/vllm-openai:v1", "services:", "command: ", "args: [", "]", "{", "}", "{{", "}}"),
        *("'", '"', "`", "$(", "${", ":-", "$((", "))", "|", ">-", "&a ", "*a", "<<: ", "<<EOF"),
        *(
            "EOF",
            "if [",
            "]; then",
            "fi",
            "case x in",
            ";;",
            "esac",
            "for x in",
            "do",
            "done",
            "()",
        ),
        *("\n", "\n  ", "\n    ", "\t", "\\\n", " ", ": ", "- ", "#", "---\n", "FROM ", "ENV A="),
        *(
            "[Service]\n",
            "ExecStart=",
            "docker run ",
            "bash -c ",
            "nvidia.com/gpu: ",
            "\ue0001\ue001",
        ),
    ]
)


@settings(max_examples=400, deadline=None)
@given(st.lists(PIECES, max_size=60).map("".join), st.sampled_from(NAMES))
def test_anything_is_read_or_refused_in_one_line(text: str, name: str) -> None:
    """No other error, whatever stands in a file."""
    try:
        found = read_source(name, text, Folder(None, {".env": "A=1", "values.yaml": "a: {b: 1}"}))
    except InputError as error:
        assert "\n" not in str(error)
    else:
        assert len({each.name for each in found}) == len(found)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=300), st.sampled_from(NAMES))
def test_any_bytes_are_read_or_refused_in_one_line(text: bytes, name: str) -> None:
    """As any text."""
    try:
        read_source(name, text)
    except InputError as error:
        assert "\n" not in str(error)


def test_two_hundred_deployments_are_read() -> None:
    """Reading alone: a repository's worth of files in one run."""
    text = Path(__file__).parent.joinpath("files", "vllm-statefulset.yaml").read_bytes()
    before = time.process_time()
    for _ in range(200):
        read_source("x.yaml", text)

    assert time.process_time() - before < HANG
