"""The kubelet's, Compose's, Docker's and systemd's variables, each as its own rule says."""

from __future__ import annotations

import pytest

from kvcalc.manifests import Folder, read_source
from kvcalc.manifests.commands import read
from kvcalc.manifests.found import Word
from kvcalc.manifests.lines import Lines
from kvcalc.manifests.splitting import split_words
from kvcalc.manifests.substitution import interpolated, kubelet, read_env_file
from kvcalc.manifests.templates import Templates, lookup_of, marked

KNOWN = {"X": "4", "EMPTY": "", "ARGS": "--a 1"}


@pytest.mark.parametrize(
    ("style", "written", "expected", "unresolved"),
    [
        ("compose", "$X ${X}", "4 4", ()),
        ("compose", "$$X $${X}", "$X ${X}", ()),
        ("compose", "${Y:-8}${Y-9}", "89", ()),
        ("compose", "${EMPTY:-8}${EMPTY-9}", "8", ()),
        ("compose", "${A:-${B:-2}}", "2", ()),
        ("compose", '${A:-{"a":{"b":1}}}', '{"a":{"b":1}}', ()),
        ("compose", "${F:---flag}", "--flag", ()),
        ("compose", "${X:+--x}${Y:+--y}", "--x", ()),
        ("compose", "${Y}", "${Y}", ("Y",)),
        ("compose", "${Y:?say so}", "${Y:?say so}", ("Y",)),
        ("compose", "$(X) $1 a$", "$(X) $1 a$", ()),
        ("compose", "${unclosed", "${unclosed", ()),
        ("dockerfile", r"\$X $X", "$X 4", ()),
        ("systemd", "%h ${X} $Y", "%h 4 $Y", ("Y",)),
        ("braces", "$X ${X}", "$X 4", ()),
    ],
)
def test_forms(style: str, written: str, expected: str, unresolved: tuple[str, ...]) -> None:
    """A value, a default, an alternative, an escape; what has no value stays as written."""
    marks = Templates()
    word = marks.finished(Word(interpolated(written, KNOWN.get, marks, style)))

    assert word.text == expected
    assert word.unresolved == unresolved


def test_a_default_is_the_files_own_text_and_a_value_is_not() -> None:
    """What came out of a variable is known as such, and never shown."""
    marks = Templates()
    default = marks.finished(Word(interpolated("${N:-8}", KNOWN.get, marks)))
    value = marks.finished(Word(interpolated("--n=$X", KNOWN.get, marks)))

    assert (default.shown, default.variables) == ("8", ())
    assert (value.shown, value.text) == ("$X", "--n=4")


@pytest.mark.parametrize(
    ("written", "expected", "unresolved"),
    [
        ("--m=$(M)", "--m=org/name", ()),
        ("$(M):$(P)", "org/name:$(P)", ("P",)),
        ("$$(M) $$$(M)", "$(M) $org/name", ()),
        ("$(S)", "$(S)", ("S",)),
        ("$M ${M} $(a b)", "$M ${M} $(a b)", ()),
    ],
)
def test_kubelet(written: str, expected: str, unresolved: tuple[str, ...]) -> None:
    """From the container's own environment; what it has not stays as it stands."""
    env = {"M": Word("org/name"), "S": Word("$(S)", 0, (), ("S",))}
    word = kubelet(Word(written, 3), env)

    assert (word.text, word.unresolved, word.line) == (expected, unresolved, 3)


def test_command_lines_are_split_as_compose_splits_them() -> None:
    """Quotes, continuations, lines; a value with blanks is several words unless it is quoted."""
    marks = Templates()
    text = interpolated('a \'b c\' "d\\"e" \\\n f$Y\n$ARGS "$ARGS"', KNOWN.get, marks)
    words = [marks.finished(w) for w in split_words(text, Lines(5), marks)]

    assert [(w.text, w.line) for w in words] == [
        ("a", 5),
        ("b c", 5),
        ('d"e', 5),
        ("f$Y", 6),
        ("--a", 7),
        ("1", 7),
        ("--a 1", 7),
    ]
    assert words[4].variables == words[6].variables == ("ARGS",)


def test_env_files() -> None:
    """Quotes, comments, `export`, and nothing else."""
    text = "# c\nA=1 # one\nexport B='x # y'\nC=\"d\"\n=bad\nnot a line\nD=\n"

    assert read_env_file(text) == {"A": "1", "B": "x # y", "C": "d", "D": ""}


VALUES = {"n": 512, "on": True, "s": "x y", "r": {"limits": {"nvidia.com/gpu": "1"}}, "w": {"k": 7}}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("len: {{ .Values.n }}", "len: 512"),
        ("len: {{- .Values.n | quote -}}", "len: 512"),
        ("len: {{ .Values.none | default 1 }}", "len: 1"),
        ('len: {{ default "2" .Values.none }}', "len: 2"),
        ("len: {{ default 2 .Values.n }}", "len: 512"),
        ('len: {{ required "say" .Values.n | int }}', "len: 512"),
        ("on: {{ $.Values.on }}", "on: true"),
        ('x: {{ include "a" . }}', 'x: {{ include "a" . }}'),
        ("x: {{.Name}}", "x: {{.Name}}"),
        ("x: {{ y | default('z') }}", "x: z"),
        ("x: {{ y }}", "x: {{ y }}"),
        ("x: {{ .Values.n | upper }}", "x: {{ .Values.n | upper }}"),
        (
            "x: {{ if .Values.on }}1{{ else }}2{{ end }}",
            "x: {{ if .Values.on }}1{{ else }}2{{ end }}",
        ),
        ("{{- if .Values.on }}\na: 1\n{{- end }}", "\na: 1\n"),
        ("{{/* a\nb */}}\nc", "\n\nc"),
        ("{% if x %}\na: {# no #}1\n{% endif %}", "\na: 1\n"),
        ("r:\n  {{- toYaml .Values.r | nindent 2 }}", 'r:\n  {"limits": {"nvidia.com/gpu": "1"}}'),
        ("{{ with .Values.w }}\nk: {{ .k }}\n{{ end }}", "\nk: 7\n"),
        ("{{ unclosed", "{{ unclosed"),
        ('\'{"a":{"b":1}}\'', '\'{"a":{"b":1}}\''),
    ],
)
def test_templates(written: str, expected: str) -> None:
    """Values beside, defaults, lines that only steer; everything else as it was written."""
    text, templates = marked(written, lookup_of(VALUES))

    assert templates.restored(text) == expected
    assert text.count("\n") == written.count("\n")


def test_a_template_is_one_word_of_a_command() -> None:
    """With its name, whether it has a value or none."""
    text, templates = marked("run {{ .Values.s }} --x={{ y }}", lookup_of(VALUES))
    words = [templates.finished(w) for w in split_words(text, Lines(1), Templates())]

    assert [w.text for w in words] == ["run", "x y", "--x={{ y }}"]
    assert words[1].variables == (".Values.s",)
    assert words[2].unresolved == ("y",)


def test_a_command_line_may_end_in_a_backslash_and_go_on_without_an_indent() -> None:
    """The last word is kept, and a word stands where it begins."""
    marks = Templates()
    found = split_words("serve a\\\n\\\n--port 1\\", Lines(1), marks)
    assert [(word.text, word.line) for word in found] == [
        ("serve", 1),
        ("a--port", 1),
        ("1", 3),
    ]
    (first, second) = split_words("a \\\n-b", Lines(1), marks)
    assert (first.line, second.line) == (1, 2)


POD = """\
kind: Pod
metadata: {name: p}
spec:
  volumes: [{name: c, configMap: {name: c}}]
  containers:
    - name: s
      image: vllm/vllm-openai:v0.33.0
      env:
        - {name: EXTRA, value: "--block-size 64 --served-model-name $(POD) --max-num-seqs 32"}
        - {name: JSON, value: "--kv-events-config '{\\"a\\":\\"{{ .x }}\\"}' --dtype half"}
      volumeMounts: [{name: c, mountPath: /c}]
      %s
"""
CONFIG = """\
---
kind: ConfigMap
metadata: {name: c}
data:
  c.yaml: |
    served-model-name: {{ .Values.name }}
    block-size: 64
    max-num-seqs: 32
    dtype: half
    max-model-len: {{ .Values.length }}
"""
NEIGHBOURS = {
    "a shell's": 'command: [sh, -c, "vllm serve a/b $EXTRA $JSON"]',
    "the kubelet's": 'command: [sh, -c, "vllm serve a/b $(EXTRA) $(JSON)"]',
    "an array's": 'command: [bash, -c, "a=($EXTRA); vllm serve a/b ${a[@]} $JSON"]',
    "a configuration's": "args: [--model, a/b, --config, /c/c.yaml]",
}


@pytest.mark.parametrize("kind", NEIGHBOURS)
def test_what_is_not_known_hides_nothing_beside_it(kind: str) -> None:
    """Of several flags in one value those are read that hold no variable without a value."""
    (found,) = read_source("x.yaml", POD % NEIGHBOURS[kind] + CONFIG, Folder())
    server = read(found)
    settings = {s.name: s.value for s in server.settings}

    assert server.model is not None and server.model.value == "a/b"
    assert settings["block_size"] == 64
    assert settings["max_num_seqs"] == 32
    assert settings["dtype"] == "float16"
    if kind == "a configuration's":
        assert settings["max_model_len"] is None
    assert not [f for f in server.findings if f.level == "error"], server.findings


def test_a_container_s_variable_hides_nothing_beside_it() -> None:
    """Of `docker run -e` as well, whose value is a shell's."""
    script = (
        'docker run -e ARGS="--block-size 64 --served-model-name $NAME --max-num-seqs 32"'
        " --gpus all --entrypoint sh vllm/vllm-openai:v0.33.0 -c 'vllm serve a/b $ARGS'\n"
    )
    (found,) = read_source("x.sh", script, Folder())
    settings = {s.name: s.value for s in read(found).settings}

    assert (settings["block_size"], settings["max_num_seqs"]) == (64, 32)


def test_words_of_an_inference_service() -> None:
    """KServe's variable is split before its templates are put in, whose blanks split nothing."""
    text = """\
apiVersion: serving.kserve.io/v1alpha1
kind: LLMInferenceService
metadata: {name: q}
spec:
  model: {uri: "hf://a/b"}
  template:
    containers:
      - name: main
        args: [--enforce-eager]
        env:
          - name: VLLM_ADDITIONAL_ARGS
            value: "--block-size 64 --kv-events-config '{\\"e\\":{{ F `a b` }}}' --max-num-seqs 8"
"""
    (found,) = read_source("x.yaml", text, Folder())
    server = read(found)
    settings = {s.name: s.value for s in server.settings}

    assert settings == {"enforce_eager": True, "block_size": 64, "max_num_seqs": 8}
    assert server.findings == ()
