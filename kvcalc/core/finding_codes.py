"""Codes of findings: what a file, a command, a card or a plan can be told of, by a stable name.

kvcalc.yaml sets a level by them (`findings: {idle-gpus: off}`); a test compares the table with the
codes that the sources use.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["FINDING_CODES"]

FINDING_CODES: Mapping[str, str] = {
    "abbreviated-flag": "a flag by its beginning",
    "ambiguous-flag": "the beginning of several flags",
    "assumed-draft": "a draft that is not known, and is taken to be shaped as its target",
    "bad-setting": "settings that no deployment has",
    "bad-value": "a value that the engine does not take",
    "blank-in-flag": "a flag and its value in one word",
    "blocks-not-share": "a number of blocks where a share of the card is meant",
    "boolean-value": "a switch with a value",
    "cache-duplicated": "ranks that keep the same bytes",
    "config-not-read": "a settings file that is not at hand",
    "contradiction": "two settings that cannot both be",
    "demo-server": "a server for tests alone",
    "dummy-weights": "weights that are made up",
    "dropped-flags": "flags that a line break parts from their command",
    "duplicate-key": "a key that stands twice",
    "engine-refuses": "a setting with which the engine does not start",
    "entrypoint-repeated": "a command behind the one that the image runs by itself",
    "equals-form": "FLAG=VALUE where the engine wants two words",
    "fp8-on-old-card": "a cache in fp8 on a card that has none",
    "fraction-out-of-interval": "a share of the card that leaves too little on one side",
    "fractional-gpu": "a part of a device where whole ones are counted",
    "gpu-request-not-limit": "a request of devices that is not their limit",
    "gpu-request-without-limit": "a request of devices without a limit",
    "idle-gpus": "devices that no rank uses",
    "ignored-extra-args": "arguments that a chart does not read",
    "ignored-key": "a key that nothing reads",
    "ignored-variable": "a variable that nothing reads",
    "length-is-shortened": "an automatic maximum below the model's own",
    "length-over-model": "a maximum beyond the model's own",
    "mistyped": "a number, truth or text where the API server wants texts or a list",
    "newer-flag": "a flag of a later release",
    "newer-release": "a release newer than those whose rules are known",
    "no-program": "flags that no program reads",
    "not-a-gpu": "devices that are no GPUs",
    "not-expanded": "a shell's variable where no shell stands",
    "not-modelled": "a setting that kvcalc does not count",
    "overwritten-gpu-count": "devices that a chart counts anew",
    "parallel-sizes-from-machine": "sizes that hang on the machine",
    "prompt-over-step": "prompts that no step can take",
    "removed-flag": "a flag that the release has no more",
    "renamed-flag": "a flag that the release calls otherwise",
    "repeated-flag": "a flag that stands twice",
    "requests-over-maximum": "requests that are longer than the maximum",
    "sequences-out-of-reach": "more places than the cache has room for",
    "setting-without-effect": "a setting that says nothing beside the others",
    "several-products": "several kinds of cards at once",
    "share-without-effect": "a share beside the bytes of the cache",
    "shared-card": "servers on one card whose shares hang on the order of their starts",
    "shares-over-card": "servers that take more than their card",
    "speculation-costs-cache": "what speculation takes of the cache",
    "stray-word": "a word that belongs to no flag",
    "too-few-gpus": "more ranks than devices",
    "two-containers-with-gpus": "two containers of a pod with devices",
    "two-limits": "two limits of a pool, of which one wins",
    "unknown-engine": "an engine that kvcalc does not know",
    "unknown-flag": "a flag that the engine has not",
    "unknown-gpu": "a card that kvcalc does not know",
    "unknown-model": "a model that kvcalc does not know",
    "unserved-model": "an architecture that the release does not serve",
    "unqualified-gpu": "devices without their maker's name",
    "unreadable": "a file that cannot be read",
    "unresolved-variable": "a variable without a value",
    "weights-format": "a format of weights whose size is not known",
    "windows-at-full-length": "layers with a window that keep every token",
}
"""Code -> what it is about."""
