"""Lines in which vLLM refuses to start, each by its code in kvcalc/engines/vllm/refusals.tsv."""

from __future__ import annotations

from functools import partial

from kvcalc.measure.logs.shapes import Shape, shape

__all__ = ["SHAPES"]

_refuses = partial(shape, ends=True, fails=True)

_STEP = (
    _refuses("is smaller than max_model_len",
             "max_num_batched_tokens (<max_num_batched_tokens:tokens>) is smaller than"
             " max_model_len (<max_model_len:tokens>)", says="prompt-over-step"),
    _refuses("greater than or equal to max_num_seqs",
             "max_num_batched_tokens (<max_num_batched_tokens:tokens>) must be greater than or"
             " equal to max_num_seqs (<max_num_seqs:count>)", says="step-below-sequences"),
    _refuses("max_num_active_seqs (", "max_num_active_seqs (<max_num_active_seqs:count>) cannot be"
             " greater than max_num_seqs (<max_num_seqs:count>)", says="active-over-sequences"),
    _refuses("max_long_partial_prefills",
             "{self.max_long_partial_prefills=|max_long_partial_prefills (}"
             "<max_long_partial_prefills:count>…{self.|}max_num_partial_prefills{=| (}"
             "<max_num_partial_prefills:count>", says="partial-prefills"),
    _refuses("long_prefill_token_threshold (", "long_prefill_token_threshold"
             " (<long_prefill_token_threshold:tokens>) cannot be greater than the max_model_len"
             " (<max_model_len:tokens>)", says="threshold-over-length"),
    _refuses("Mamba cache align mode", "In Mamba cache align mode, block_size"
             " (<attention_block_size:tokens>) must be <= max_num_batched_tokens"
             " (<max_num_batched_tokens:tokens>)", says="block-over-step"),
    _refuses("hunked prefill is required for",
             "Chunked prefill is required for {mamba cache mode|Mamba prefix caching}",
             says="prefixes-need-chunks"),
    _refuses("hunked MM input is required", "Chunked MM input is required",
             says="prefixes-need-chunks"),
    _refuses("hunked MM input disabled",
             "Chunked MM input disabled but max_tokens_per_mm_item (<item_tokens:tokens>) is larger"
             " than max_num_batched_tokens (<max_num_batched_tokens:tokens>)",
             says="encoder-over-step"),
    _refuses("max_num_scheduled_tokens is set to",
             "max_num_scheduled_tokens is set to <scheduled_tokens:count> based on the speculative"
             " decoding settings, which does not allow", says="step-below-drafts"),
    _refuses("does not have enough slots", "does not have enough slots to schedule a token and"
             " support the speculative decoding settings", says="step-below-drafts"),
    _refuses("onsider increasing max_num_batched_tokens", "Consider increasing"
             " max_num_batched_tokens or decreasing num_speculative_tokens",
             says="step-below-adapter-drafts"),
    _refuses("o valid cudagraph sizes", "No valid cudagraph sizes after rounding to multiple of"
             " <graph_multiple:count>", says="graphs-below-proposals"),
    _refuses("must be divisible by", "num_speculative_tokens:<num_speculative_tokens:count> must be"
             " divisible by n_predict=<n_predict:count>", says="proposals-not-divided"),
    _refuses("same vocabulary size", "Target and draft model should have the same vocabulary size."
             " Target model vocab_size=<target_rows:count>. Draft model vocab_size="
             "<draft_rows:count>", says="draft-vocabulary"),
    _refuses("sync scheduling is not", "Async scheduling is not {supported with"
             " pipeline-parallel-size|yet compatible with pipeline_parallel_size} > 1",
             says="async-with-stages"),
    _refuses("sync scheduling is only supported", "async scheduling is only supported with EAGLE",
             says="async-with-proposals"),
)  # fmt: skip

_SPLIT = (
    _refuses("Total number of attention heads", "Total number of attention heads (<heads:count>)"
             " must be divisible by tensor parallel size (<tensor_parallel_size:count>)",
             says="heads-over-ranks"),
    _refuses("is not divisible by", "AssertionError: <width:count> is not divisible by"
             " <tensor_parallel_size:count>", says="width-over-ranks"),
    _refuses("divisible by weight quantization", "<rank_width:count> is not divisible by weight"
             " quantization {block_n|block_k} = <quantised_group:count>",
             says="quantised-width-over-ranks"),
    _refuses("is not divisible by", "<rank_width:count> is not divisible by {min_thread_n|"
             "min_thread_k} = <quantised_group:count>", says="kernel-width-over-ranks"),
    _refuses("size is not aligned with", "The {input|output} size is not aligned with the quantized"
             " weight shape", says="kernel-width-over-ranks"),
    _refuses("Number of experts in the model", "Number of experts in the model must be greater than"
             " 0 when expert parallelism is enabled", says="experts-needed"),
    _refuses("ipeline parallelism is", "Pipeline parallelism is {not supported for this model|only"
             " supported for the following}", says="stages-not-served"),
    _refuses("does not match", "{partitions)=|partitions}<partition:count> does not match"
             " {pp_size|num_hidden_layers}=<partition_wanted:count>", says="stage-partition"),
    _refuses("KV sharing target layer", "Specified KV sharing target layer for <layer:word> is not"
             " valid", says="shared-kv-over-stages"),
    _refuses("than total num kv heads", "tensor parallel size <tensor_parallel_size:count> must be"
             " greater than total num kv heads <heads:count>", says="context-parallel-over-heads"),
    _refuses("ecode context parallel", "{decode context parallel size must less than or equal to|"
             "Decode context parallelism for GQA/MQA requires}",
             says="context-parallel-over-heads"),
    _refuses("decode-context-parallel-size", "`--decode-context-parallel-size` (<dcp:count>)"
             " {exceeds the maximum|for GQA/MQA}", says="context-parallel-over-heads"),
    _refuses("than max local gpu count", "tensor_parallel_size (<tensor_parallel_size:count>) to"
             " less than max local gpu count (<node_gpus:count>)", says="too-few-gpus"),
    _refuses("World size (", "World size (<world_size:count>) is larger than the number of"
             " available GPUs (<node_gpus:count>)", says="too-few-gpus"),
)  # fmt: skip

_CHOICES = (
    _refuses("derived max_model_len", "max_model_len (<max_model_len:tokens>) is greater than the"
             " derived max_model_len (<length_key:word>=<longest_of_model:count>[.0] ",
             says="length-over-model"),
    _refuses("are not supported for now", "Model architectures \\['<architecture:quoted>'… are"
             " not supported for now", says="unserved-model"),
    _refuses("re-initialize the input batch", "Cannot re-initialize the input batch when CPU"
             " weight offloading is enabled", says="cpu-offload-groups"),
    _refuses("is only supported on GPUs", "Bfloat16 is only supported on GPUs with compute"
             " capability of at least 8.0", says="bfloat16-on-old-gpu"),
    _refuses("does not support float16", "does not support float16. Reason",
             says="float16-refused"),
    _refuses("fp8_e5m2 kv-cache", "fp8_e5m2 kv-cache is not supported with fp8 checkpoints",
             says="fp8-e5m2-checkpoint"),
    _refuses("nvfp4 KV cache", "nvfp4 KV cache is not supported with MLA", says="nvfp4-with-mla"),
    _refuses("o valid attention backend", "No valid attention backend found",
             says="no-attention-backend"),
    _refuses("argument --block-size", "argument --block-size: invalid choice",
             says="block-not-taken"),
    _refuses("argument --max-lora-rank", "argument --max-lora-rank: invalid choice",
             says="adapter-rank"),
    _refuses("max_lora_rank (", "max_lora_rank (<max_lora_rank:count>) must be one of",
             says="adapter-rank"),
    _refuses("max_cpu_loras (", "max_cpu_loras (<max_cpu_loras:count>) must be >= max_loras"
             " (<max_loras:count>)", says="adapters-on-host"),
    _refuses("to one unified type", "KV cache specs to one unified type",
             says="hybrid-manager-needed"),
    _refuses("the maximum page size", "is not divisible by the maximum page size",
             says="pages-not-equal"),
    _refuses("oo large swap space", "Too large swap space. <swap_space:GiB> GiB out of the"
             " <host_memory:GiB> GiB total CPU memory", says="swap-over-host"),
    _refuses("rror in memory profiling", "Error in memory profiling. Initial free memory"
             " <free_before:GiB> GiB, current free memory <free_after:GiB> GiB",
             says="memory-freed-meanwhile"),
)  # fmt: skip

_STATES = (
    _refuses("available Mamba cache blocks", "max_num_seqs (<max_num_seqs:count>) exceeds available"
             " Mamba cache blocks (<num_gpu_blocks:blocks>)", keep="least",
             says="sequences-over-state-blocks"),
    _refuses("num_cache_lines", "assert num_cache_lines >= batch", says="graphs-over-state-blocks"),
)  # fmt: skip

SHAPES: tuple[Shape, ...] = (*_STATES, *_STEP, *_SPLIT, *_CHOICES)
"""Of vLLM 0.2 to 0.33; the files that print them stand in the table."""
