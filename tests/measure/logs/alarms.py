"""False alarms and cures over real starts: python -m tests.measure.logs.alarms.

Every start of the list of cases (and of complete starts, where they are at hand) is read as a user
pastes it, and once more with the model and settings that the tests know of it. A healthy start is
one whose lines tell of a cache and of no refusal; what is then said against it is a false alarm.
Of a refused one the cause must be named, and each change that is offered must start by a capacity
answer with the memory that it is said to leave.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kvcalc.answers.capacity import CapacityAnswer
from kvcalc.answers.logs import Fix, LogAnswer
from kvcalc.core.deployment import Deployment, GpuSpec
from kvcalc.core.errors import InputError, KvcalcError
from kvcalc.core.model import ModelSpec
from kvcalc.measure.logs import Given, answered, read_start
from kvcalc.models.presets import load_gpu
from kvcalc.sizing import Question, answer
from tests.conftest import SHARED
from tests.engines.llamacpp.log_cases import CASES as LLAMACPP
from tests.engines.sglang.log_cases import CASES as SGLANG
from tests.engines.vllm.log_cases import CASES as VLLM
from tests.measure.logs.samples import ALL

__all__ = ["Counts", "Start", "counted", "starts", "written"]

WRITTEN = Path(__file__).parent / "written"

_REFUSED = re.compile(
    r"KV cache is needed|No available memory|max seq len|less than desired|leave no GPU memory"
    r"|Not enough memory|[Oo]ut of memory|failed to (?:start|allocate)|Insufficient|Error: |error:"
    r"|maximum model length is|larger than the profiled value -|warm-?up .*(?:fail|exceed)"
    r"|hit an exception|\[Errno|is larger than the sum|[Ii]nsufficient"
)
"""Of a start that was refused or died, in the engines' own words."""

_SIZED = re.compile(
    r"KV cache size|[Bb]locks: ?\d|Maximum concurrency|Cache is allocated|max_total_num_tokens"
    r"|KV (?:self|buffer) size|llama_kv_cache|memory_recurrent|paged [Kk][Vv] cache|primary pool"
    r"|max_block_count|KV-cache blocks|Available KV cache memory|Current kv cache memory in use"
    r"|full_token=|attention block size|padding layers"
)
"""Of a start that got as far as its cache."""


LEFT_OUT = {
    "vllm-v1-041": "two releases in one excerpt",
    "vllm-v1-042": "two models in one excerpt",
    "llamacpp-131": "a model that is not named, made up from the other figures",
    "trtllm-219": "a request that is refused, and no start",
}
"""Cases that are no start, or several -> what they are."""


class Start(NamedTuple):
    """A log, and what is known of it.

    Attributes:
        name: of the case.
        text: the log.
        given: what a test knows of it; None where nothing.
        gpu: the GPU that it is said to be of; None where kvcalc has none of that name.
    """

    name: str
    text: str
    given: Given | None = None
    gpu: GpuSpec | None = None

    @property
    def refused(self) -> bool:
        """Whether the engine's own words tell of an end."""
        return _REFUSED.search(self.text) is not None

    @property
    def healthy(self) -> bool:
        """Whether its lines tell of a cache, and of no end."""
        return not self.refused and _SIZED.search(self.text) is not None


class Counts(NamedTuple):
    """What was found.

    Attributes:
        healthy: healthy starts, and `alarms`: what was said against them.
        refused: starts that were refused or died, and `named`: those whose cause is named.
        cures: changes that are offered, and `confirmed`: those that a capacity answer confirms.
        bare: settings that are offered though no plan confirmed them.
    """

    healthy: int
    alarms: list[str]
    refused: int
    named: int
    cures: int
    confirmed: int
    bare: list[str]


def starts() -> Iterator[Start]:
    """Yield the real starts at hand; none where the shared folder is not there."""
    known = _known()
    for file in ("cases.jsonl", "starts2.jsonl"):
        path = SHARED / "logs" / file
        if not path.is_file():
            continue
        for line in path.read_text(encoding="utf-8").splitlines():
            case = json.loads(line)
            text = case.get("log_excerpt") or case.get("log") or ""
            if str(case.get("engine", "")).startswith("pytorch") or not text:
                continue
            if case.get("id") in LEFT_OUT:
                continue
            name = str(case.get("id", "?"))
            for given in known.get(name, [None]):
                yield Start(name, text, given, _gpu(case.get("gpu")))


def written() -> Iterator[Start]:
    """Yield the starts that we wrote: healthy ones, refused ones, and deaths."""
    for name, text in ALL.items():
        yield Start(name, text)
    for path in sorted((WRITTEN / "deaths").glob("*.log")):
        yield Start(path.stem, path.read_text(encoding="utf-8"))
    for path in sorted((WRITTEN / "starts").glob("*.log")):
        yield Start(path.stem, path.read_text(encoding="utf-8"))


def _known() -> dict[str, list[Given | None]]:
    """Return case -> what tests give of it, after nothing at all."""
    found: dict[str, list[Given | None]] = {}
    tables: tuple[
        tuple[Any, Callable[[Any], tuple[ModelSpec, dict[str, Any], dict[str, Any]]]], ...
    ]
    tables = (
        (VLLM, lambda one: (one.model(), {"engine_version": one.release, **one.settings}, {})),
        (SGLANG, lambda one: (one.model(), one.settings, one.args)),
        (LLAMACPP, lambda one: (one.model(), one.settings, one.args)),
    )
    for table, of in tables:
        for one in table:
            model, settings, args = of(one)
            settings = dict(settings)
            args = {**settings.pop("engine_args", {}), **args}
            found.setdefault(one.case, [None]).append(
                Given(model=model, settings=settings, args=args)
            )
    return found


def _gpu(text: object) -> GpuSpec | None:
    if not isinstance(text, str):
        return None
    try:
        return load_gpu("-".join(text.lower().split()))
    except KvcalcError:
        return None


def told(start: Start) -> LogAnswer | None:
    """Return what is said of a start; None where no line of it is an engine's."""
    given = start.given or Given()
    if start.gpu is not None and "gpu" not in given.settings:
        given = given._replace(settings={**given.settings, "gpu": start.gpu})
    try:
        return answered(read_start("-", given, None, io.BytesIO(start.text.encode())), given)
    except InputError:
        return None


def alarms(start: Start, found: LogAnswer) -> Iterator[str]:
    """Yield what is said against a healthy start."""
    if found.outcome not in ("started", "sized", "unknown") or found.failure:
        yield f"{start.name}: {found.outcome}: {found.failure}"
    for difference in found.differences:
        if difference.explained_by is None:
            yield f"{start.name}: {difference.name} {difference.logged}, {difference.predicted}"
    if "It was not on" in found.verdict:
        yield f"{start.name}: {found.verdict}"


def confirmed(fix: Fix, model: ModelSpec, deployment: Deployment) -> bool:
    """Whether a capacity answer says that a change starts with the cache that it leaves."""
    fields = {"--kv-cache-dtype": "kv_cache_dtype", "--enforce-eager": "enforce_eager"}
    settings: dict[str, Any] = {}
    flags = list(fix.flags)
    while flags:
        flag = flags.pop(0)
        name = fields.get(flag, flag.removeprefix("--").replace("-", "_"))
        value: Any = True
        if flags and not flags[0].startswith("--"):
            text = flags.pop(0)
            value = int(text) if text.isdigit() else float(text) if "." in text else text
        settings[name] = value
    import msgspec

    settings["kv_cache_memory_bytes"] = fix.kv_cache_bytes
    settings["gpu"] = None
    # A length beyond the model's own is one that the server took.
    settings["engine_args"] = {**deployment.engine_args, "VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}
    try:
        asked = msgspec.structs.replace(deployment, **settings)
        made: CapacityAnswer = answer(Question(model=model, deployment=asked))
    except KvcalcError:
        return False
    return made.low.starts and made.low.kv_cache_tokens == fix.kv_cache_tokens


_OWN = ("--kv-cache-memory-bytes",)
"""Settings that the server's own line suggests, which kvcalc hands on."""


def _of_the_engine(cure: str, found: LogAnswer) -> bool:
    """Whether a cure is a length that the engine itself says fits, or is told of no plan."""
    fact = found.facts.get("max_model_len_that_fits")
    return (fact is not None and cure.split()[1].startswith(str(fact.low))) or "at most" in cure


def counted(some: Iterator[Start]) -> Counts:
    """Return the counts over starts."""
    healthy = refused = named = cures = sure = 0
    wrong: list[str] = []
    bare: list[str] = []
    for start in some:
        found = told(start)
        if found is None:
            continue
        if start.healthy:
            healthy += 1
            wrong += alarms(start, found)
        if start.refused:
            refused += 1
            named += found.failure is not None
        model, deployment = _of(start)
        for fix in found.fixes:
            cures += 1
            sure += model is not None and confirmed(fix, model, deployment)
        if model is not None and found.engine == "vllm":
            texts = {fix.text for fix in found.fixes}
            bare += [
                f"{start.name}: {cure}"
                for cure in found.cures
                if cure.startswith("--")
                and cure not in texts
                and not cure.startswith(_OWN)
                and not _of_the_engine(cure, found)
            ]
    return Counts(healthy, wrong, refused, named, cures, sure, bare)


def _of(start: Start) -> tuple[ModelSpec | None, Deployment]:
    given = start.given or Given()
    read = read_start("-", given, None, io.BytesIO(start.text.encode()))
    return read.resolved.model, read.resolved.deployment


def main() -> None:
    """Print the counts of what is at hand."""
    for title, some in (("real starts", starts()), ("written by us", written())):
        found = counted(some)
        print(f"{title}: {found.healthy} healthy, {len(found.alarms)} false alarms")
        for line in found.alarms:
            print(f"  {line}")
        print(f"  {found.refused} refused or dead, the cause named of {found.named}")
        print(f"  {found.cures} changes offered, {found.confirmed} confirmed by a capacity answer")
        for line in found.bare:
            print(f"  offered without a plan: {line}")


if __name__ == "__main__":
    main()
