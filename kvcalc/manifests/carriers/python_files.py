"""Python files that start servers: Modal's apps and other launchers, by their literal commands.

The file is parsed and never run. A command is a list whose first words start a server, as it is
built from literals, constants, f-strings and defaults, or a text that is handed to a shell. What a
branch adds to a list is not read: nobody knows whether it is added.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from kvcalc.core.errors import InputError
from kvcalc.manifests.found import GpuRequest, Invocation, Word
from kvcalc.manifests.launched import Launch, Place
from kvcalc.manifests.launches import of_container, of_script
from kvcalc.manifests.lines import Lines
from kvcalc.manifests.packages import pinned
from kvcalc.manifests.sources import PassedOverError
from kvcalc.manifests.splitting import split_words
from kvcalc.manifests.templates import MARK, Piece, Templates

__all__ = ["STARTS", "of_python"]

STARTS = re.compile(
    r"(?:vllm|sglang|lmdeploy|ollama)[\"',\s]{1,40}(?:serve|start|run)\b|vllm\.entrypoints|"
    r"sglang\.launch_server|llama[-_]server|llama_cpp\.server|trtllm-serve|dynamo\.\w|"
    r"text-generation-launcher|(?:docker|podman)[\"',\s]{1,40}run\b"
)
"""What a Python file that starts a server holds: the words of a command, in a list or a text."""

_ENGINES = re.compile(r"vllm|sglang|llama|trtllm|text-generation|lmdeploy|ollama|dynamo")
_SHELLS = {"system", "run", "Popen", "call", "check_call", "check_output", "getoutput", "popen"}
_SHELLS |= {"create_subprocess_shell", "run_commands"}
_MOST = 2**18  # characters: launchers are a few KiB
_MOST_WORDS = 300  # of a command
_MOST_LISTS = 20_000
_MOST_COMMANDS = 500  # of one file
_COUNTED = re.compile(r"(.+?)!?(?::(\d{1,3}))?")

_Text = Word
_Value = Word | list[Word] | None


class _Scope(NamedTuple):
    """Where a command stands: its function, and the GPUs that a decorator asks for."""

    name: str
    gpu: GpuRequest


def of_python(text: str, place: Place, marks: Templates) -> list[Invocation]:
    """Return the servers that a Python file starts.

    Raises:
        PassedOverError: it is not valid for this release of Python, or too large.
    """
    if len(text) > _MOST:
        hint = "name the launcher alone, or what it starts: kvcalc check -- vllm serve MODEL"
        raise PassedOverError(f"Python larger than {_MOST // 2**10} KiB", hint=hint)
    try:
        module = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        hint = "kvcalc reads Python of the release that it runs on"
        message = "Python that cannot be parsed"
        raise PassedOverError(message, hint=hint, where=f"{place.file}:{line}") from None
    reader = _Reader(place, marks)
    reader.body(module.body, _Scope("", GpuRequest()), sure=True)
    return list(reader.invocations())


class _Reader:
    def __init__(self, place: Place, marks: Templates) -> None:
        self.place = place
        self.marks = marks
        self.names: dict[str, _Value] = {}
        self.lists: dict[tuple[int, int, int], tuple[list[Word], _Scope]] = {}
        self.launches: list[tuple[Launch, _Scope]] = []
        self.env: dict[str, Word] = {}
        self.installed: dict[str, str] = {}
        self.image: Word | None = None

    def invocations(self) -> Iterator[Invocation]:
        """Yield the servers, with what the file says of all of them."""
        named = [each for each in self.lists.items() if _names_engine(each[1][0])]
        for (line, *_), (words, scope) in named[:_MOST_COMMANDS]:
            for launch in of_container(words, None, {}, self.place, line=line, closed=False):
                self.launches.append((launch, scope))
        self.launches.sort(key=lambda each: each[0].line)
        for launch, scope in self.launches:
            installed = {**self.installed, **launch.installed}
            whole = launch._replace(
                env={**self.env, **launch.env},
                image=launch.image or self.image,
                installed=installed,
                gpu=launch.gpu if launch.gpu.resource else scope.gpu,
            )
            name = launch.name or scope.name or "server"
            yield whole.started(name, "Python", self.place.file)

    def body(self, statements: list[ast.stmt], scope: _Scope, *, sure: bool) -> None:
        """Follow statements in their order; `sure` says that they surely run."""
        for statement in statements:
            self.statement(statement, scope, sure=sure)

    def statement(self, node: ast.stmt, scope: _Scope, *, sure: bool) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self.definition(node, scope)
        elif not self.assigned(node, scope, sure=sure):
            self.other(node, scope, sure=sure)

    def assigned(self, node: ast.stmt, scope: _Scope, *, sure: bool) -> bool:
        """Follow a statement that sets a name or adds to a list; return whether it does."""
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                if not isinstance(value, ast.List | ast.Tuple):
                    self.calls(value, scope)
                self.names[name] = self.value(value, scope)
            case ast.Assign(targets=[ast.Subscript(slice=ast.Constant(value=str(name)))]):
                given = self.value(node.value, scope)
                if isinstance(given, Word) and "environ" in ast.unparse(node.targets[0]):
                    self.env[name] = given
            case ast.AugAssign(target=ast.Name(id=name), value=value):
                self.extend(name, self.value(value, scope), sure=sure)
            case ast.Expr(
                value=ast.Call(
                    func=ast.Attribute(value=ast.Name(id=name), attr="extend" | "append"),
                    args=[value],
                )
            ):
                self.extend(name, self.value(value, scope), sure=sure)
            case _:
                return False
        return True

    def other(self, node: ast.stmt, scope: _Scope, *, sure: bool) -> None:
        """Look into a statement of any other kind, and into its body."""
        for field in ("test", "value", "iter", "items", "exc"):
            found = getattr(node, field, None)
            for each in found if isinstance(found, list) else [found]:
                self.calls(each, scope)
        surely = sure and isinstance(node, ast.With | ast.AsyncWith | ast.Try)
        holds = self.holds(node.test, scope) if isinstance(node, ast.If) else None
        for field in ("body", "orelse", "finalbody"):
            if holds is None or holds == (field == "body"):
                inside = surely or (sure and holds is not None)
                self.body(getattr(node, field, []), scope, sure=inside)
        for handler in getattr(node, "handlers", []):
            self.body(handler.body, scope, sure=False)

    def holds(self, test: ast.expr, scope: _Scope) -> bool | None:
        """Return whether a test of a constant holds; None where nobody knows."""
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            inner = self.holds(test.operand, scope)
            return None if inner is None else not inner
        value = self.value(test, scope) if isinstance(test, ast.Name | ast.Constant) else None
        if not isinstance(value, Word) or MARK in value.text:
            return None
        return value.text not in ("False", "None", "0", "")

    def definition(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, scope: _Scope
    ) -> None:
        """Follow a function's or a class's body, where nothing but its defaults is known."""
        gpu = scope.gpu
        for decorator in node.decorator_list:
            self.calls(decorator, scope)
            gpu = self.gpu(decorator, scope) or gpu
        outer = dict(self.names)
        if not isinstance(node, ast.ClassDef):
            named = [*node.args.posonlyargs, *node.args.args]
            defaults = [None] * (len(named) - len(node.args.defaults)) + node.args.defaults
            named, defaults = [*named, *node.args.kwonlyargs], [*defaults, *node.args.kw_defaults]
            for argument, default in zip(named, defaults, strict=True):
                self.names[argument.arg] = None if default is None else self.value(default, scope)
        self.body(node.body, _Scope(node.name, gpu), sure=True)
        self.names = outer

    def gpu(self, decorator: ast.expr, scope: _Scope) -> GpuRequest | None:
        """Return the GPUs of Modal's `gpu=`: `"H100:2"`, several that may be given, or a call."""
        if not isinstance(decorator, ast.Call):
            return None
        asked = next((k.value for k in decorator.keywords if k.arg == "gpu"), None)
        if isinstance(asked, ast.Call):  # modal.gpu.H100(count=2)
            count = next((k.value for k in asked.keywords if k.arg == "count"), None)
            name = ast.unparse(asked.func).rpartition(".")[2]
            number = self.value(count, scope) if count is not None else None
            told = f"{name}:{number.text}" if isinstance(number, Word) else name
            value: _Value = Word(told, asked.lineno)
        else:
            value = None if asked is None else self.value(asked, scope)
        words = value if isinstance(value, list) else [value] if value is not None else []
        parts = [(w, _COUNTED.fullmatch(w.text)) for w in words if MARK not in w.text]
        cards = [(w._replace(text=m[1]), int(m[2] or 1)) for w, m in parts if m is not None]
        if not cards:
            return None
        return GpuRequest(
            devices=cards[0][1],
            resource="gpu",
            product=cards[0][0],
            product_key="gpu",
            choices=tuple(word for word, _ in cards[1:]),
            line=cards[0][0].line,
        )

    def extend(self, name: str, value: _Value, *, sure: bool) -> None:
        """Add to a list what surely is added."""
        known = self.names.get(name)
        if isinstance(known, list) and sure and value is not None:
            known += value if isinstance(value, list) else [value]
            del known[_MOST_WORDS:]

    def calls(self, node: object, scope: _Scope) -> None:
        """Look into an expression for commands that are handed to a shell, and what is said."""
        inside = list(ast.walk(node)) if isinstance(node, ast.AST) else []
        for each in reversed(inside):  # what is inside first: a sum of lists takes their place
            if isinstance(each, ast.List | ast.Tuple | ast.BinOp):
                self.value(each, scope)
            if not isinstance(each, ast.Call):
                continue
            name = each.func.attr if isinstance(each.func, ast.Attribute) else ""
            name = each.func.id if isinstance(each.func, ast.Name) else name
            if "pip_install" in name:
                texts = [a.value for a in ast.walk(each) if isinstance(a, ast.Constant)]
                self.installed |= pinned(text for text in texts if isinstance(text, str))
            elif name == "from_registry" and each.args:
                value = self.value(each.args[0], scope)
                self.image = value if isinstance(value, Word) else self.image
            elif name == "env" and each.args and isinstance(each.args[0], ast.Dict):
                self.variables(each.args[0], scope)
            elif name in _SHELLS:
                for argument in each.args[:1]:
                    self.shell(self.value(argument, scope), argument.lineno, scope)

    def variables(self, node: ast.Dict, scope: _Scope) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            given = self.value(value, scope)
            if isinstance(key, ast.Constant) and isinstance(given, Word):
                self.env[str(key.value)] = given

    def shell(self, value: _Value, line: int, scope: _Scope) -> None:
        """Read a text as a shell's command."""
        if isinstance(value, Word) and _ENGINES.search(value.text):
            try:
                launches, _ = of_script(value.text, Lines(line, step=0), {}, self.place)
            except InputError:
                return
            self.launches += [(launch, scope) for launch in launches]

    def value(self, node: ast.expr, scope: _Scope) -> _Value:
        """Return what an expression gives, as far as the file says it."""
        line = node.lineno
        match node:
            case ast.Constant(value=str() | int() | float() | None as value):
                return Word(str(value), line)
            case ast.Name(id=name):
                known = self.names.get(name)
                return known._replace(line=line) if isinstance(known, Word) else known
            case ast.Attribute(attr="executable"):  # sys.executable
                return Word("python3", line)
            case ast.List() | ast.Tuple():
                return self.keep(node, self.elements(node.elts, scope), scope)
            case ast.BinOp(op=ast.Add()):
                return self.added(node, scope)
            case ast.JoinedStr(values=values):
                return _joined([self.text(self.value(v, scope), v) for v in values], line)
            case ast.FormattedValue(value=value):
                return self.value(value, scope)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                holds = self.holds(test, scope)
                return None if holds is None else self.value(body if holds else orelse, scope)
            case ast.Call():
                return self.called(node, scope)
        return None

    def keep(self, node: ast.expr, words: list[Word], scope: _Scope) -> list[Word]:
        """Keep a list that may be a command: by its place, as it may be looked at twice."""
        del words[_MOST_WORDS:]
        if len(self.lists) < _MOST_LISTS:
            self.lists[node.lineno, node.col_offset, node.end_col_offset or 0] = (words, scope)
        return words

    def added(self, node: ast.BinOp, scope: _Scope) -> _Value:
        """Return two lists as one, or two texts."""
        left, right = self.value(node.left, scope), self.value(node.right, scope)
        if isinstance(left, list) and isinstance(right, list):
            parts = [place for place, (words, _) in self.lists.items() if words in (left, right)]
            for place in parts:
                del self.lists[place]
            return self.keep(node, [*left, *right], scope)
        return _joined([self.text(left, node.left), self.text(right, node.right)], node.lineno)

    def elements(self, nodes: list[ast.expr], scope: _Scope) -> list[Word]:
        words: list[Word] = []
        for node in nodes[:_MOST_WORDS]:
            if isinstance(node, ast.Starred):
                value = self.value(node.value, scope)
                more = value if isinstance(value, list) else [self.text(value, node.value)]
                words += more[: _MOST_WORDS - len(words)]
            elif isinstance(node, ast.List | ast.Tuple):
                words.append(Word("[]", node.lineno))  # a list of lists is no command
            else:
                words.append(self.text(self.value(node, scope), node))
        return words

    def called(self, node: ast.Call, scope: _Scope) -> _Value:
        """Return what a call gives: `str(x)`, `shlex.split`, `" ".join`, a variable's default."""
        name = ast.unparse(node.func)[:100]
        given = [self.value(argument, scope) for argument in node.args]
        first = given[0] if given else None
        if name in ("str", "int", "float", "shlex.quote"):
            return first
        if name in ("os.environ.get", "os.getenv"):
            return given[1] if len(given) > 1 else None
        if name == "shlex.split" and isinstance(first, Word):
            words = split_words(first.text, Lines(node.lineno, step=0), self.marks)
            return self.keep(node, words, scope)
        return first if name.endswith((".join", "shlex.join")) else None

    def text(self, value: _Value, node: ast.expr) -> Word:
        """Return a value as one word; an expression that nobody knows as it is written."""
        if isinstance(value, Word) and value.text != "None":
            return value
        written = " ".join(ast.unparse(node).split())[:100]
        return Word(self.marks.mark(Piece(f"{{{written}}}", written, None)), node.lineno)


def _joined(words: list[Word], line: int) -> Word:
    return Word("".join(word.text for word in words), line)


def _names_engine(words: list[Word]) -> bool:
    return any(_ENGINES.search(word.text) for word in words)
