"""vLLM's options: every one of `vllm serve` 0.33.0, and those that older releases had.

vLLM 0.33.0 engine/arg_utils.py (EngineArgs.add_cli_args), entrypoints/common/cli_args.py
(FrontendArgs); what is gone was looked up in the wheels of 0.6.6 to 0.32.0.
"""

from __future__ import annotations

from kvcalc.manifests.commands.flags import Flag, Grammar, gone, table

__all__ = ["DYNAMO", "GRAMMAR", "HUGGINGFACE"]

_FLAGS = table(
    pair="""
        allow-credentials allow-deprecated-quantization async-scheduling cohere-is-reasoning-model
        cudagraph-metrics data-parallel-external-lb|-dpe data-parallel-hybrid-lb|-dph
        dcp-q-replicate disable-cascade-attn disable-chunked-mm-input disable-custom-all-reduce
        disable-fastapi-docs disable-hybrid-kv-cache-manager disable-nccl-for-dp-synchronization
        disable-sliding-window disable-uvicorn-access-log enable-auto-tool-choice
        enable-batch-sharded-sampling enable-chunked-prefill enable-cumem-allocator enable-dbo
        enable-elastic-ep enable-ep-weight-filter enable-eplb enable-expert-parallel|-ep
        enable-fault-tolerance enable-flash-late-interaction enable-flashinfer-autotune
        enable-force-include-usage enable-hc-sp enable-layerwise-nvtx-tracing enable-log-deltas
        enable-log-outputs enable-log-requests enable-logging-iteration-details enable-lora
        enable-mamba-cache-stochastic-rounding enable-mamba-shared-prefix-checkpoint
        enable-mfu-metrics enable-mixed-moe-lora-format enable-mm-embeds enable-moe-shared-loras
        enable-nccl-comm-suspend enable-offline-docs enable-per-request-metrics
        enable-prefix-caching enable-prompt-embeds enable-prompt-tokens-details
        enable-request-id-headers enable-return-routed-experts enable-scale-out
        enable-server-load-tracking enable-shm-tensor-arena enable-sleep-mode enable-ssl-refresh
        enable-tokenizer-info-endpoint enable-tower-connector-lora enable-trace-replay enforce-eager
        exclude-tools-when-tool-choice-none fail-on-environ-validation fully-sharded-loras
        interleave-mm-strings jit-monitor-verbose kv-cache-metrics kv-sharing-fast-prefill
        language-model-only log-error-stack long-prefill-token-threshold-adaptive
        mm-device-do-normalize mm-encoder-only monokernel numa-bind ray-workers-use-nsight
        return-sampling-mask return-tokens-as-token-ids scheduler-reserve-full-isl skip-mm-profiling
        skip-tokenizer-init sleep-mode-offload-cudagraph specialize-active-lora swa-bounded-replay
        tokens-only trust-remote-code trust-request-chat-template trust-request-mm-kwargs
        use-fp64-gumbel use-replayssm use-tqdm-on-load
    """,
    switch="""
        aggregate-engine-logging data-parallel-multi-port-external-lb|-dpm disable-log-stats grpc
        headless
    """,
    many="""
        allowed-media-domains api-key collect-detailed-traces cpu-offload-params
        cudagraph-capture-sizes ignore-patterns kv-cache-dtype-skip-layers logits-processors
        lora-modules lora-target-modules numa-bind-cpus numa-bind-nodes offload-params
        served-model-name sleep-preserve-parameter-names
    """,
    maybe="""
        hf-token
    """,
    each="""
        middleware
    """,
    one="""
        additional-config all2all-backend allowed-headers allowed-local-media-path allowed-methods
        allowed-origins anthropic-disabled-thinking-effort api-server-count|-asc attention-backend
        attention-config|-ac aux-output-config block-size chat-template chat-template-content-format
        code-revision cohere-format compilation-config|-cc config config-format convert
        cp-kv-cache-interleave-size cpu-distributed-timeout-seconds cpu-offload-gb
        custom-histogram-buckets data-parallel-address|-dpa data-parallel-backend|-dpb
        data-parallel-rank|-dpn data-parallel-rpc-port|-dpp data-parallel-size-local|-dpl
        data-parallel-size|-dp data-parallel-start-rank|-dpr data-parallel-supervisor-port
        dbo-decode-token-threshold dbo-prefill-token-threshold dcp-comm-backend
        dcp-kv-cache-interleave-size decode-context-parallel-size|-dcp default-chat-template-kwargs
        default-mm-loras device-ids diffusion-config|-dc disable-access-log-for-endpoints
        distributed-executor-backend distributed-timeout-seconds download-dir
        dp-supervisor-probe-failure-threshold dp-supervisor-probe-interval-s
        dp-supervisor-probe-timeout-s dp-sync-interval dtype ec-manager-config ec-transfer-config
        elastic-ep-max-dp-size engram-config eplb-config expert-placement-strategy
        fault-tolerance-config fingerprint-mode fingerprint-value gdn-prefill-backend
        generation-config gpu-memory-utilization|device-memory-utilization grpc-port
        h11-max-header-count h11-max-incomplete-event-size hf-config-path hf-overrides host
        io-processor-plugin ir-op-priority jit-monitor-mode kda-decode-backend kda-prefill-backend
        kernel-config kv-cache-dtype kv-cache-memory-bytes kv-cache-metrics-sample kv-events-config
        kv-offloading-backend kv-offloading-size kv-transfer-config limit-mm-per-prompt
        linear-backend load-format log-config-file log-level logging-config logprobs-mode
        long-prefill-token-threshold lora-dtype mamba-backend mamba-block-size mamba-cache-dtype
        mamba-cache-mode mamba-cache-philox-rounds mamba-ssm-cache-dtype mamba-ssu-algorithm
        master-addr master-port max-cpu-loras max-cudagraph-capture-size max-log-len max-logprobs
        max-lora-cls-labels max-lora-rank max-loras max-model-len max-num-active-seqs
        max-num-batched-tokens max-num-queued-reqs max-num-queued-tokens max-num-scheduled-tokens
        max-num-seqs max-parallel-loading-workers media-io-kwargs mm-encoder-attn-backend
        mm-encoder-attn-dtype mm-encoder-fp8-scale-path mm-encoder-fp8-scale-save-margin
        mm-encoder-fp8-scale-save-path mm-encoder-tp-mode mm-hasher-algorithm mm-ipc-gpu-memory-gb
        mm-processor-cache-gb mm-processor-cache-type mm-processor-device mm-processor-kwargs
        mm-shm-cache-max-object-size-mb mm-tensor-ipc model model-class-overrides model-impl
        model-loader-extra-config moe-backend nnodes|-n node-rank|-r num-gpu-blocks-override
        offload-backend offload-group-size offload-num-in-group offload-prefetch-step
        optimization-level otlp-traces-endpoint override-generation-config
        per-request-spec-decode-metrics performance-mode pipeline-parallel-size|-pp pooler-config
        port prefill-context-parallel-size|-pcp prefill-schedule-interval
        prefix-cache-retention-interval prefix-caching-hash-algo prefix-match-unit profiler-config
        pt-load-map-location quantization-config quantization|-q reasoning-config
        reasoning-effort-map reasoning-parser reasoning-parser-plugin renderer-num-workers
        replayssm-buffer-len response-role revision root-path runner safetensors-load-strategy
        safetensors-prefetch-block-size safetensors-prefetch-num-threads scheduler-cls
        scheduling-policy seed show-hidden-metrics-for-version shutdown-timeout sleep-mode-backend
        sparse-indexer-topk-backend spec-method spec-model spec-tokens speculative-config|-sc
        sse-keep-alive-interval ssl-ca-certs ssl-cert-reqs ssl-certfile ssl-ciphers ssl-keyfile
        stream-interval structured-outputs-config tensor-parallel-size|-tp tokenizer tokenizer-mode
        tokenizer-revision tool-call-parser tool-parser-plugin tool-server tool-strict-level
        ubatch-size uds uvicorn-log-level video-pruning-method video-pruning-rate watchdog-config
        watermark watermark-config weight-transfer-config worker-cls worker-extension-cls
    """,
)

_INVERSE = {"--enable-": "--disable-", "--disable-": "--enable-"}


def _with_inverses() -> dict[str, tuple[Flag, bool]]:
    """Return the options with --disable-x for --enable-x, and the other way about (0.33)."""
    found = dict(_FLAGS)
    for spelling, (flag, on) in _FLAGS.items():
        for start, other in _INVERSE.items():
            if flag.takes == "pair" and on and spelling.startswith(start):
                found.setdefault(other + spelling.removeprefix(start), (flag, False))
    return found


_SPECULATIVE = '--speculative-config \'{"method": ..., "num_speculative_tokens": ...}\''
_GONE = gone(f"""
    0.6.6  0.7.3  switch worker-use-ray = --distributed-executor-backend ray
    0.6.6  0.7.3  one quantization-param-path
    0.7.3  0.8.5  one speculative-model num-speculative-tokens = {_SPECULATIVE}
    0.7.3  0.8.5  one speculative-draft-tensor-parallel-size = {_SPECULATIVE}
    0.7.3  0.8.5  one speculative-max-model-len speculative-model-quantization = {_SPECULATIVE}
    0.7.3  0.8.5  one ngram-prompt-lookup-max ngram-prompt-lookup-min = {_SPECULATIVE}
    0.7.3  0.8.5  one speculative-disable-by-batch-size = {_SPECULATIVE}
    0.9.2  0.10.0 one device long-lora-scaling-factors qlora-adapter-name-or-path
    0.9.2  0.10.0 switch use-v2-block-manager enable-reasoning
    0.10.0 0.10.2 one num-scheduler-steps override-neuron-config
    0.10.2 0.11.0 one max-seq-len-to-capture = --max-cudagraph-capture-size
    0.10.2 0.11.0 one preemption-mode scheduler-delay-factor
    0.11.0 0.11.2 one rope-scaling rope-theta = --hf-overrides
    0.11.0 0.11.2 switch enable-lora-bias
    0.11.2 0.12.0 one guided-decoding-backend = --structured-outputs-config
    0.11.2 0.12.0 switch guided-decoding-disable-fallback = --structured-outputs-config
    0.11.2 0.12.0 switch guided-decoding-disable-any-whitespace = --structured-outputs-config
    0.11.2 0.12.0 switch guided-decoding-disable-additional-properties = --structured-outputs-config
    0.11.2 0.12.0 one lora-extra-vocab-size
    0.11.2 0.12.0 one override-pooler-config = --pooler-config
    0.12.0 0.13.0 one task = --runner, and --convert
    0.12.0 0.13.0 many cuda-graph-sizes = --cudagraph-capture-sizes
    0.12.0 0.13.0 switch disable-mm-preprocessor-cache = --mm-processor-cache-gb 0
    0.12.0 0.13.0 switch enable-multimodal-encoder-data-parallel = --mm-encoder-tp-mode data
    0.17.1 0.18.1 one swap-space
    0.26.0 0.27.1 one max-num-partial-prefills max-long-partial-prefills
    0.27.1 0.28.0 switch calculate-kv-scales
    0.27.1 0.28.0 one override-attention-dtype
    - 0.6.6 one max-paddings max-context-len-to-capture
    - - one num-lookahead-slots tokenizer-pool-size tokenizer-pool-type tokenizer-pool-extra-config
    - - one max-prompt-adapters max-prompt-adapter-token chat-template-text-format
    - - switch engine-use-ray enable-prompt-adapter disable-async-output-proc
    - - switch disable-frontend-multiprocessing multi-step-stream-outputs
""")
"""The last ones were never looked up in a wheel."""


GRAMMAR = Grammar(
    "vLLM",
    _with_inverses(),
    _GONE,
    "0.33",
    abbreviates=True,
    folds=True,
    dotted=True,
    meant={"--quant": "--quantization"},
)

DYNAMO = table(
    one="""
        namespace endpoint endpoint-types connector migration-limit component discovery-backend
        request-plane event-plane custom-jinja-template kv-events-port dyn-reasoning-parser
        dyn-tool-call-parser dyn-encoder-image-url-processing router-mode store-kv
        extra-engine-args publish-events-and-metrics output-modalities
        dyn-endpoint-types mx-model-express-url model-express-url disaggregation-strategy
        modality encode-endpoint max-file-size-mb disaggregation-mode
    """,
    switch="""
        is-prefill-worker is-decode-worker multimodal-processor multimodal-encode-worker
        multimodal-worker multimodal-decode-worker multimodal-encode-prefill-worker
        enable-multimodal use-sglang-tokenizer use-vllm-tokenizer enable-local-indexer
        durable-kv-events use-kv-events route-to-encoder embedding-worker
    """,
)
"""Options of `python -m dynamo.vllm`, `.sglang` and `.trtllm` beside the engine's own."""

HUGGINGFACE = table(
    one="""
        model_name|model-name model_id|model-id model_dir|model-dir model_revision|model-revision
        tokenizer_revision tensor_input_names backend task http_port grpc_port workers
        max_threads max_asyncio_workers configure_logging log_config_file access_log_format
        predictor_host predictor_port predictor_protocol predictor_config max_length
    """,
    switch="""
        enable_grpc return_token_type_ids return_raw_logits return_probabilities disable_lower_case
        disable_special_tokens trust_remote_code enable_docs_url enable_latency_logging
        disable_log_requests
    """,
)
"""Options of KServe's Hugging Face server, which hands the others to vLLM."""
