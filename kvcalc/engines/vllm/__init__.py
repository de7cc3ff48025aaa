"""Engine `vllm`: what vLLM allocates and holds, to the last block, by release.

A plan is made in the order in which vLLM makes it (`planning`); what a platform decides in it is
told apart (`platform`), so that vLLM's plugins plan by the same rules.
"""

from __future__ import annotations

from kvcalc.core.deployment import Deployment
from kvcalc.core.model import ModelSpec
from kvcalc.core.plan import CachePlan
from kvcalc.engines.vllm.planning import plan_on
from kvcalc.engines.vllm.platform import CUDA
from kvcalc.engines.vllm.start_up import start_up_log
from kvcalc.engines.vllm.version import RELEASES

__all__ = ["RELEASES", "plan", "start_up_log"]


def plan(model: ModelSpec, deployment: Deployment) -> CachePlan:
    """Return the plan that vLLM makes.

    Raises:
        UnsupportedError: what vLLM refuses for this model and card, or kvcalc does not model.
        InvalidValueError, UnknownNameError: a setting that makes no sense.
    """
    return plan_on(CUDA, model, deployment)
