"""`trtllm-serve MODEL`, `trtllm-serve serve MODEL`, `python -m dynamo.trtllm`.

TensorRT-LLM commands/serve.py at 00209af; a YAML file (--config) says more, and wins.
"""

from __future__ import annotations

from kvcalc.core.errors import nearest, printable
from kvcalc.engines.tensorrt_llm.arguments import KNOWN_ARGUMENTS, NO_BYTES, NOT_MODELLED
from kvcalc.manifests.commands.flags import Grammar, names, table
from kvcalc.manifests.commands.numbers import decimal, whole
from kvcalc.manifests.commands.options import Given, split
from kvcalc.manifests.commands.programs import Start
from kvcalc.manifests.commands.reading import Kind, Places, Reading
from kvcalc.manifests.commands.rules import Rule, each, model, number, switch, text
from kvcalc.manifests.commands.vllm_flags import DYNAMO
from kvcalc.models.documents import Plain

__all__ = ["GRAMMAR", "read"]

_FLAGS = table(
    one="""
        tokenizer custom_tokenizer host port backend log_level max_beam_width max_batch_size
        max_num_tokens max_seq_len tensor_parallel_size|--tp_size pipeline_parallel_size|--pp_size
        context_parallel_size|--cp_size moe_expert_parallel_size|--ep_size
        moe_cluster_parallel_size|--cluster_size gpus_per_node
        free_gpu_memory_fraction|--kv_cache_free_gpu_memory_fraction kv_cache_dtype
        num_postprocess_workers revision config|--extra_llm_api_options reasoning_parser tool_parser
        metadata_server_config_file server_role otlp_traces_endpoint disagg_cluster_uri
        media_io_kwargs chat_template
    """,
    switch="trust_remote_code fail_fast_on_attention_window_too_large enable_chunked_prefill",
    each="custom_module_dirs",
)
GRAMMAR = Grammar("trtllm-serve", _FLAGS, {}, "1.3", greedy=True)

_DYNAMO = table(
    one="""
        model-path|--model served-model-name extra-engine-args override-engine-args
        tensor-parallel-size pipeline-parallel-size expert-parallel-size max-batch-size
        max-num-tokens max-seq-len max-beam-width free-gpu-memory-fraction kv-block-size
        gpus-per-node allowed-local-media-path guided-decoding-backend
    """,
    switch="skip-tokenizer-init enable-attention-dp trust-remote-code",
)
_FIELDS = {
    "max_seq_len": "max_model_len",
    "max_batch_size": "max_num_seqs",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
}
_SHOWN = {
    "max_num_tokens": "max_num_batched_tokens",
    "context_parallel_size": "context_parallel_size",
    "moe_expert_parallel_size": "moe_expert_parallel_size",
    "expert_parallel_size": "moe_expert_parallel_size",
    "moe_cluster_parallel_size": "moe_cluster_parallel_size",
    "gpus_per_node": "gpus_per_node",
}


def _beams(reading: Reading, given: Given) -> None:
    kind: Kind = "other" if given.word.text.strip() == "1" else "arg"
    reading.number("max_beam_width", kind, given, whole, 1)


RULES: dict[str, Rule] = {
    "model_path": model,
    "model": model,
    **{name: number(field, "field", whole, 1) for name, field in _FIELDS.items()},
    **{name: number(shown, "other", whole) for name, shown in _SHOWN.items()},
    "free_gpu_memory_fraction": number("free_gpu_memory_fraction", "arg", decimal, 1e-9, 1),
    "max_beam_width": _beams,
    "kv_cache_dtype": text("kv_cache_dtype", "field"),
    "kv_block_size": number("tokens_per_block", "arg", whole, 1),
    "enable_attention_dp": switch("enable_attention_dp", "arg"),
    "enable_chunked_prefill": switch("enable_chunked_prefill", "other"),
    **each(
        ("backend", "revision", "served_model_name", "server_role"),
        lambda name: text(name, "other"),
    ),
}
_CONFIGS = ("config", "extra_engine_args")
_NESTED = "kv_cache_config"
_QUIET = names("dtype kv_cache_config max_num_tokens tensor_parallel_size pipeline_parallel_size")
_NOT_CACHED = names("""
    allreduce_strategy attention_dp_config attn_backend backend batch_wait_max_tokens_ratio
    batch_wait_timeout_iters batch_wait_timeout_ms batched_logits_processor build_config
    cache_transceiver_config checkpoint_format checkpoint_loader cp_config cuda_graph_batch_sizes
    cuda_graph_config cuda_graph_max_batch_size cuda_graph_padding_enabled
    disable_flashinfer_sampling disable_overlap_scheduler dtype enable_autotuner enable_build_cache
    enable_chunked_prefill enable_iter_perf_stats enable_iter_req_stats
    enable_layerwise_nvtx_marker enable_lora enable_min_latency enable_sleep env_overrides
    extended_runtime_perf_knob_config fail_fast_on_attention_window_too_large
    garbage_collection_gen0_threshold guided_decoding_backend hostname iter_stats_max_iterations
    kv_connector_config load_format lora_config max_beam_width mm_encoder_only moe_backend
    moe_config moe_tensor_parallel_size num_postprocess_workers orchestrator_type peft_cache_config
    perf_metrics_max_requests port postprocess_tokenizer_dir print_iter_log quant_config
    ray_worker_extension_cls reasoning_parser request_stats_max_iterations return_perf_metrics
    revision sampler_type scheduler_config skip_tokenizer_init stream_interval tokenizer
    tokenizer_mode tokenizer_revision torch_compile_config trust_remote_code url use_cuda_graph
""")
"""Keys of the file that bear on nothing here."""


def read(reading: Reading, start: Start) -> None:
    """Read a command of trtllm-serve's, and the file that wins over it."""
    grammar = GRAMMAR
    if start.how.startswith("dynamo"):
        flags = {**DYNAMO, **_DYNAMO}
        grammar = GRAMMAR._replace(flags=flags, abbreviates=True, engine="dynamo.trtllm")
    found = split(start.words, grammar, reading.version)
    reading.findings.extend(found.findings)
    for given in found.given:
        if (rule := RULES.get(given.name)) is not None:
            rule(reading, given)
    alone = found.alone
    if alone and reading.model is None:
        reading.named("MODEL", alone[0])
        alone = alone[1:]
    cure = "write the flag that it is a value of, with underscores"
    reading.stray(alone, "trtllm-serve", cure)
    for given in found.given:
        if given.name in _CONFIGS:
            _config(reading, given)


def _config(reading: Reading, given: Given) -> None:
    read_file = reading.document(given.written, given.word)
    if read_file is None:
        return
    values, places = read_file
    for key, value in values.items():
        if key == _NESTED and isinstance(value, dict):
            for name, inner in value.items():
                _nested(reading, places, name, inner)
        elif key != _NESTED:
            _key(reading, places, key, value)


def _given(places: Places, value: Plain, *path: str) -> Given:
    text_of = "" if isinstance(value, (dict, list)) else str(value)
    word = places.word(text_of, *path)
    return Given(path[-1], ".".join(path), (word,), on=value is not False)


def _nested(reading: Reading, places: Places, name: str, value: Plain) -> None:
    """Read one key of kv_cache_config."""
    given = _given(places, value, _NESTED, name)
    if name == "dtype" and value is not None:
        reading.text("kv_cache_dtype", "field", given)
    else:
        _argument(reading, given, value)


def _key(reading: Reading, places: Places, name: str, value: Plain) -> None:
    """Read one key of the file."""
    given = _given(places, value, name)
    if value is None or name in _NOT_CACHED:
        return
    if name in _FIELDS or name in _SHOWN or name == "model":
        RULES[name](reading, given)
    else:
        _argument(reading, given, value)


def _argument(reading: Reading, given: Given, value: Plain) -> None:
    """Set an engine_arg of the file, or tell what it is instead."""
    name, word = given.name, given.word
    if value is None or name in NO_BYTES or name in _QUIET:
        return
    if name == "speculative_config":
        reading.put(name, "given", "arg", given.written, word)  # the engine says it does not know
    elif name in NOT_MODELLED:
        reading.not_modelled(given.written, word, NOT_MODELLED[name])
    elif name not in KNOWN_ARGUMENTS:
        _unknown(reading, given)
    elif name == "free_gpu_memory_fraction":
        RULES[name](reading, given)
    elif isinstance(value, list):
        reading.put(name, ",".join(map(str, value)), "arg", given.written, word)
    elif isinstance(value, dict):
        reading.bad(given.written, word, "write a value, not a mapping")
    else:
        reading.put(name, value, "arg", given.written, word)


def _unknown(reading: Reading, given: Given) -> None:
    near = nearest(given.name, [*KNOWN_ARGUMENTS, *_FIELDS, *_NOT_CACHED], 1)
    reading.find(
        "unknown-flag",
        "warning" if near else "note",
        f"kvcalc knows no key {printable(given.name)[:60]} of TensorRT-LLM's settings",
        f"write {near[0]} if that is meant" if near else "bear it in mind",
        given.word,
    )
