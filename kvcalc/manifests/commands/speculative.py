"""How tokens are proposed ahead, put together from vLLM's options of all releases."""

from __future__ import annotations

from collections.abc import Sequence

from kvcalc.manifests.commands.numbers import BadNumberError, short
from kvcalc.manifests.commands.options import Given
from kvcalc.manifests.commands.reading import Reading, Value
from kvcalc.manifests.found import Word
from kvcalc.models.documents import Plain

__all__ = ["propose"]

_Config = dict[str, tuple[Plain, Given]]
"""Key of speculative_config -> its value, and the option that it came from."""

_OLD = {
    "speculative_model": "model",
    "num_speculative_tokens": "num_speculative_tokens",
    "spec_method": "method",
    "spec_model": "model",
    "spec_tokens": "num_speculative_tokens",
}
_OTHER_VOCABULARY = "use_heterogeneous_vocab"
_FIELDS = {
    "method": "speculative_method",
    "num_speculative_tokens": "num_speculative_tokens",
    "model": "draft_model",
}


def propose(reading: Reading, given: Sequence[Given]) -> None:
    """Set speculative_method, num_speculative_tokens and draft_model from the options."""
    config: _Config = {}
    for each in given:
        if each.name == "speculative_config":
            _merge(reading, each, config)
        elif each.name in _OLD:
            if reading.unresolved(each.written, each.word):
                reading.put(_FIELDS[_OLD[each.name]], None, "field", each.written, each.word)
            else:
                config[_OLD[each.name]] = (each.word.text.strip(), each)
    _by_draft(reading, config)
    for key, field in _FIELDS.items():
        if key in config:
            _put(reading, field, *config[key])


def _by_draft(reading: Reading, config: _Config) -> None:
    """Tell the method by the draft where it is not said, and leave out what is no draft."""
    draft, method = _text(config, "model"), _text(config, "method")
    if draft is None:
        return
    at = config["model"][1]
    if draft.strip("[]").lower() == "ngram":
        config["method"] = ("ngram", at)
        del config["model"]
    elif _is_target(reading, draft, method):
        del config["model"]
    elif method is None:
        folded = draft.lower().replace("-", "")
        found = next(
            (name for name in ("eagle3", "eagle", "dflash", "dspark") if name in folded), None
        )
        if found is not None:
            config["method"] = (found, at)


def _merge(reading: Reading, given: Given, config: _Config) -> None:
    if given.path:
        if given.path[0] in _FIELDS and len(given.path) == 1:
            if reading.unresolved(given.written, given.word):
                field = _FIELDS[given.path[0]]
                reading.put(field, None, "field", given.written, given.word)
            else:
                config[given.path[0]] = (given.word.text.strip(), given)
        return
    value = reading.json(given)
    if value is None:
        if given.word.unresolved:
            reading.put("speculative_method", None, "field", given.written, given.word)
        return
    if not isinstance(value, dict):
        reading.refuse(f"{given.written} is no mapping", given.word, 'write {"method": ..., ...}')
        return
    if value.get(_OTHER_VOCABULARY) is True:
        reading.put(_OTHER_VOCABULARY, True, "arg", given.written, given.word)
    config.update({key: (value[key], given) for key in _FIELDS if value.get(key) is not None})


def _text(config: _Config, key: str) -> str | None:
    value = config[key][0] if key in config else None
    return value if isinstance(value, str) else None


def _is_target(reading: Reading, draft: str, method: str | None) -> bool:
    """Whether the draft is the model itself: its own layers propose."""
    model = reading.model.value if reading.model is not None else None
    return draft == model and (method is None or method.endswith("mtp"))


def _put(reading: Reading, field: str, value: Plain, given: Given) -> None:
    word: Word = given.word
    if field == "num_speculative_tokens":
        number = _number(value)
        if number is None:
            what = f"num_speculative_tokens of {given.written} is no number from 1 on"
            reading.refuse(what, word, "write a number such as 3")
            return
        reading.put(field, number, "field", given.written, word)
        return
    kept: Value = value if isinstance(value, str) else None
    if kept is None:
        reading.refuse(f"{field} of {given.written} is no text", word, "write its name")
        return
    reading.put(field, kept, "field", given.written, word)


def _number(value: Plain) -> int | None:
    if isinstance(value, str):
        try:
            value = short(value)
        except BadNumberError:
            return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        return None
    return value
