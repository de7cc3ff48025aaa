"""Scripts are followed without being run: what they would start, word by word, line by line."""

from __future__ import annotations

import pytest

from kvcalc.core.errors import InputError
from kvcalc.manifests.found import Word
from kvcalc.manifests.shell import parse
from kvcalc.manifests.shell.expansion import arithmetic
from kvcalc.manifests.shell.state import State

EXPANSIONS = [
    # what stands before, the words of the command, what they become
    ("X=a", "$X ${X} ${X}b", ["a", "a", "ab"]),
    ("", "$X", ["$X"]),
    ("", "${X:-8} ${X-8}", ["8", "8"]),
    ("X=", "${X:-8} ${X-8}.", ["8", "."]),
    ("X=4", "${X:-8} ${X:+--x} ${Y:+--y}", ["4", "--x"]),
    ("", "${A:-${B:-2}}", ["2"]),
    ("", "${A:---enable-prefix-caching}", ["--enable-prefix-caching"]),
    ("", '--kv="${A:-}" ${A:-} "${A:-}"', ["--kv=", ""]),
    ("A=2 ; B=3", "$((A*B)) $(( $A + ${B} - 1 )) $((8/B))", ["6", "4", "2"]),
    ("", "$((A*2))", ["$((A*2))"]),
    ("a=(x 'y z')", '"${a[@]}" ${#a[@]}', ["x", "y z", "${#a[@]}"]),
    ("a=(x); a+=(--port 80)", '"${a[@]}"', ["x", "--port", "80"]),
    ("a=()", '"${a[@]}"', []),
    ("X='a b'", '$X "$X"', ["a", "b", "a b"]),
    ("", r"""'$X' "a\"b" a\ b $'t\tb'""", ["$X", 'a"b', "a b", "t\tb"]),
    ("", "one \\\ntwo # three", ["one", "two"]),
    ("M=org/name", "${M##*/} ${M#*/} ${M%/*}", ["name", "name", "org"]),
    ("", "$(hostname -I)", ["$(hostname -I)"]),
    ("N=3", "$(echo n $N) $(printf '%s' \"$N\")", ["n", "3", "3"]),
    ("", "'{\"a\": 1}'", ['{"a": 1}']),
    ("N=3", r'"{\"n\":$N}"', ['{"n":3}']),
]


@pytest.mark.parametrize(("before", "words", "expected"), EXPANSIONS)
def test_expansions(before: str, words: str, expected: list[str]) -> None:
    """As bash gives them; a variable that nothing sets stays as it was written."""
    script = parse(f"{before}\nrun {words}")

    assert [word.text for word in script.commands[-1].words] == ["run", *expected]


def test_a_word_says_where_it_came_from() -> None:
    """Variables put in, variables without a value, and an array's own lines."""
    text = 'M=org/name\nargs=(\n  --len\n  $LEN\n)\nrun $M \\\n  --a=$B-$M "${args[@]}"\n'
    words = parse(text, 10).commands[-1].words

    assert words[1] == Word("org/name", 15, ("M",))
    assert words[2] == Word("--a=$B-org/name", 16, ("M",), ("B",))
    assert words[-2:] == (Word("--len", 12), Word("$LEN", 13, (), ("LEN",)))


def test_an_unresolved_value_with_blanks_is_one_word() -> None:
    """What a command would print is not known, so neither is where its words end."""
    words = parse("X=$(a b c)\nrun $X $(d e)").commands[-1].words

    assert [word.text for word in words] == ["run", "$(a b c)", "$(d e)"]
    assert all(word.unresolved for word in words[1:])


@pytest.mark.parametrize(
    ("script", "started"),
    [
        ("if [ 1 -gt 0 ]; then a; else b; fi", ["a"]),
        ('X=; if [ -n "$X" ]; then a; else b; fi', ["b"]),
        ('if [ -n "$X" ]; then a; else b; fi', ["a", "b"]),
        ("docker start x || a", ["docker start x", "a"]),
        ("if nvidia-smi | grep H100; then a; else b; fi", ["nvidia-smi", "grep H100", "a", "b"]),
        ("[[ x == x* && 2 -le 2 ]] && a || b", ["a"]),
        ("[ a = b ] && a; c", ["c"]),
        ("case on in off) a ;; on|yes) b ;; *) c ;; esac", ["b"]),
        ("for x in 1 2; do a; done; while true; do b; done", ["a", "b"]),
        ("f() { a $1; }; f x", ["a x"]),
        ("f() { a; }", ["a"]),
        ("function f { a; }\nf", ["a"]),
        ("(a; b) | c && d &", ["a", "b", "c", "d"]),
        ("exec a; b", ["exec a"]),
        ("a; exit 1; b", ["a"]),
        ("f() { return; a; }; f; b", ["b"]),
        ("eval 'a b'", ["a b"]),
        ("set -- p q; a $1 $2; shift; a $1", ["a p q", "a q"]),
        ("export X=1; X=2 a $X", ["a 1"]),
        ("((i++)); a <<< x > /dev/null 2>&1", ["a"]),
        ("until curl -s x; do sleep 1; done; a", ["curl -s x", "sleep 1", "a"]),
        ("a <(b c) x", ["a <(b c) x"]),
        ("fi; done; }; ) a", ["a"]),
    ],
)
def test_what_is_started(script: str, started: list[str]) -> None:
    """Known tests decide; of others every branch is looked into."""
    found = [" ".join(w.text for w in c.words) for c in parse(script).commands]

    assert found == started


def test_a_branch_that_nobody_can_decide_leaves_what_both_agree_on() -> None:
    """Neither reading is taken for the other."""
    script = 'A="-x 1"\nif [ -f y ]; then A="$A -y 2"; B=1; else B=2; fi\nrun $A $B'
    words = parse(script).commands[-1].words

    assert [word.text for word in words] == ["run", "-x", "1", "${A}", "${B}"]
    assert [word.unresolved for word in words[3:]] == [("A",), ("B",)]


def test_a_container_has_no_other_variables() -> None:
    """A test of a variable that a container does not have finds it empty."""
    script = 'if [ -n "$X" ]; then a; else b; fi'

    assert [c.words[0].text for c in parse(script, closed=True).commands] == ["b"]


def test_files_that_a_script_writes() -> None:
    """Quoted, unquoted, with tabs, appended, by echo and by tee."""
    script = parse(
        "V=1\ncat > /a <<EOF\nx $V\nEOF\ncat <<'EOF' >> /a\ny $V\nEOF\n"
        "tee /b <<-E\n\tz\n\tE\necho hello > /c\n",
    )

    assert {path: body.text for path, body in script.files.items()} == {
        "/a": "x 1\ny $V\n",
        "/b": "z\n",
        "/c": "hello\n",
    }
    assert script.files["/a"].line == 3
    assert script.files["/b"].line == 9


def test_files_beside_and_environment() -> None:
    """`source` takes assignments; exported variables and those before a command are seen."""
    files = {".env": "M=org/name\nSECRET='a b'\n"}
    script = parse("set -a; source .env\nT=2 run $M", beside=files.get)

    assert [word.text for word in script.commands[-1].words] == ["run", "org/name"]
    assert script.commands[-1].env["T"].text == "2"
    assert script.commands[-1].env["SECRET"].text == "a b"


@pytest.mark.parametrize(
    ("script", "line"),
    [('a\nb "c', 2), ("a 'b\nc", 1), ("a ${b", 1), ("a\n\nb $(c", 3), ("a `b", 1), ("a $((1", 1)],
)
def test_what_nothing_closes_is_refused_on_its_line(script: str, line: int) -> None:
    """One line that says which quote it is."""
    with pytest.raises(InputError, match="nothing closes") as caught:
        parse(script, where="x.sh")

    assert caught.value.where == f"x.sh:{line}"


def test_arithmetic_is_of_whole_numbers_alone() -> None:
    """As a shell divides; nothing that is not arithmetic is looked at."""
    state = State()

    assert arithmetic("7 / 2 * (3 - 1) % 4", state) == 2
    assert arithmetic("-7 / 2", state) == -3
    assert arithmetic("1 / 0", state) is None
    assert arithmetic("2 ** 99999", state) is None
    assert arithmetic("x", state) is None
    assert arithmetic("__import__('os')", state) is None
