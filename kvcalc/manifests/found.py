"""What the files that people deploy say: words with their places, servers started, settings read.

A carrier (a Deployment, a compose file, a script) yields an `Invocation` for each server that it
starts; the engine's own command-line grammar turns it into a `Server`. What came out of a
variable is never shown as it stands, only what kvcalc made of it: variables hold secrets.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

__all__ = [
    "Attached",
    "Branch",
    "Finding",
    "GpuRequest",
    "Invocation",
    "Level",
    "MemoryLimit",
    "Server",
    "Setting",
    "Word",
    "apart",
]

Level = Literal["error", "warning", "note"]

Branch = tuple[tuple[tuple[int, ...], int], ...]
"""The conditions that a command stands in, from the outermost, and the branch of each."""


def apart(one: Branch, two: Branch) -> bool:
    """Whether two commands stand in different branches of one condition: only one of them runs.

    >>> apart((((1,), 0),), (((1,), 1), ((2,), 0)))
    True
    """
    other = dict(two)
    return any(condition in other and other[condition] != place for condition, place in one)


class Word(NamedTuple):
    """One word of a command, or one scalar of a file, where it stands.

    Attributes:
        text: with every variable that is known put in.
        line: in the file, from 1; 0 where there is no file (`kvcalc check -- vllm serve ...`).
        variables: names whose values were put into the text; their values are not to be shown.
        unresolved: variables and templates that no file gives a value; the text keeps them as they
            were written.
        file: where the word stands, when that is not the file of the Invocation.
    """

    text: str
    line: int = 0
    variables: tuple[str, ...] = ()
    unresolved: tuple[str, ...] = ()
    file: str = ""

    @property
    def shown(self) -> str:
        """The word as messages may show it."""
        return "$" + ", $".join(self.variables) if self.variables else self.text


class Finding(NamedTuple):
    """Something that is wrong or worth knowing in a file.

    Attributes:
        code: a stable name such as `unknown-flag` (kebab case), by which a level can be set.
        level: error: it will not start, or not as written; warning: it starts, at a cost; note.
        message: what is the matter, in one line, without values of variables.
        cure: what to write instead, in one line.
        line: in the file, from 1.
        file: where it is not the file of the server.
        amount: how bad it is, where that is a number: the more the worse.
    """

    code: str
    level: Level
    message: str
    cure: str
    line: int = 0
    file: str = ""
    amount: int | float | None = None


class GpuRequest(NamedTuple):
    """The cards that a file asks for, for one copy (pod, container, node) of a server.

    Attributes:
        devices: whole ones; None where the file says nothing of them.
        fraction: a part of a device as it is written ("0.5"), where it is no whole number.
        every: all that the machine has (`gpus: all`).
        resource: what they are asked by: `nvidia.com/gpu`, `requestGPU`, `gpus`, ...
        product: the label, instance type or accelerator that names the card.
        product_key: where it was read: `nvidia.com/gpu.product`, `accelerators`, ...
        choices: further products, any of which may be given.
        memory_bytes: of each device where the file says it (a MIG slice, HAMi's gpumem).
        memory_percent: of each device (HAMi).
        shared: devices are time-sliced: memory is not divided.
        visible: devices named one by one (CUDA_VISIBLE_DEVICES, device_ids); () for none (-1).
        line: of the number, or of the product where there is no number.
        file: where that stands, when it is not the file of the Invocation.
    """

    devices: int | None = None
    fraction: str | None = None
    every: bool = False
    resource: str | None = None
    product: Word | None = None
    product_key: str | None = None
    choices: tuple[Word, ...] = ()
    memory_bytes: int | None = None
    memory_percent: int | None = None
    shared: bool = False
    visible: tuple[str, ...] | None = None
    line: int = 0
    file: str = ""


class Attached(NamedTuple):
    """A file that a server reads and that is given with it: a ConfigMap's, a here-document."""

    file: str
    line: int
    text: str


class MemoryLimit(NamedTuple):
    """The host memory that a container may have, and where that stands."""

    bytes: int
    line: int


class Invocation(NamedTuple):
    """A server that a file starts, before its command is read.

    Attributes:
        name: unique in its file: the resource's own name, then the container's where there are
            several.
        carrier: what starts it: `Deployment`, `StatefulSet`, `LeaderWorkerSet`, `compose`,
            `shell`, `Dockerfile`, `helm values`, `Ray Serve`, `command`, ...
        file: as it was named; "" for a command.
        line: where the server begins.
        words: the command, its program first where the file says it (`vllm serve ...`); flags
            alone where the image's own entry point is the program. Settings given as keys are
            turned into the flags that they become (`maxModelLen` -> `--max-model-len`).
        image: the container's image.
        env: variables of the container, by name. Never shown.
        gpu: what it asks for.
        replicas: copies; None where nothing is said.
        replicas_line: where that stands; 0 where nothing is said.
        nodes: machines that one copy spans (LeaderWorkerSet's size).
        attached: files by the path under which the server sees them.
        findings: what is wrong with the file itself.
        engine: where the carrier says it without a command or an image that shows it.
        under_entry_point: the words come after the command that the image runs by itself
            (compose's `command`, a container's `args`), which the file does not replace.
        installed: package -> the release that the file itself installs (`pip install vllm==X`).
        background: a script leaves it running while what follows starts (`&`, `docker run -d`).
        branch: the conditions of its script, or the profiles of its Compose file, that it starts
            under.
        after: the lines where servers of the same file begin that are ready before it starts.
        shm_bytes: the size of its container's own /dev/shm; None where it is the host's, or nothing
            says it.
        memory_limit: the host memory that its container may have; None where nothing limits it.
        given: settings that its carrier says, and no command: the weights' format.
    """

    name: str
    carrier: str
    file: str
    line: int
    words: tuple[Word, ...] = ()
    image: Word | None = None
    env: Mapping[str, Word] = {}
    gpu: GpuRequest = GpuRequest()
    replicas: int | None = None
    replicas_line: int = 0
    nodes: int = 1
    attached: Mapping[str, Attached] = {}
    findings: tuple[Finding, ...] = ()
    engine: str | None = None
    under_entry_point: bool = False
    installed: Mapping[str, str] = {}
    background: bool = False
    branch: Branch = ()
    after: tuple[int, ...] = ()
    shm_bytes: int | None = None
    memory_limit: MemoryLimit | None = None
    given: Mapping[str, Word] = {}


class Setting(NamedTuple):
    """One setting that was read.

    Attributes:
        name: a field of Deployment, or `model`, `quantization`; an engine's own word (a key of
            engine_args) where `kind` is "arg".
        value: as kvcalc takes it.
        kind: "field", "arg" (of engine_args), or "other" (`model`, `quantization`, and
            settings that decide nothing for the cache but are worth showing).
        written: the flag, key or variable it was written as: `--max-model-len`.
        line: in the file, from 1.
        file: where it is not the file of the server.
        variables: names whose values went into it; a text of theirs is not to be shown.
    """

    name: str
    value: str | int | float | bool | None
    kind: Literal["field", "arg", "other"]
    written: str
    line: int = 0
    file: str = ""
    variables: tuple[str, ...] = ()

    @property
    def shown(self) -> str | int | float | bool | None:
        """The value as it may be shown: a text out of a variable is the variable's name."""
        if self.variables and isinstance(self.value, str):
            return "$" + ", $".join(self.variables)
        return self.value


class Server(NamedTuple):
    """A server as it would be started.

    Attributes:
        invocation: where it was found.
        engine: kvcalc's name of it; None where no engine was recognised.
        engine_version: of the image's tag, or the package that is installed; None where nothing
            says it.
        model: the repository, file or path that is served; its `value` is None where a variable
            without a value names it.
        settings: everything else that was read, a later one of the same name in place of an
            earlier.
        findings: the file's and the command's.
    """

    invocation: Invocation
    engine: str | None
    engine_version: str | None
    model: Setting | None
    settings: tuple[Setting, ...]
    findings: tuple[Finding, ...]
