"""Every setting of vLLM 0.32's engine (`EngineArgs`), by what it does to a run: two sets, and two tables of refusals.

    COMPUTED    may change what the model computes: part of the run's identity
    CAPACITY    speed, memory, devices, logs, or what no prompt of ours uses: a run keeps its id when one changes
    REFUSED     values that may be given for a key that could otherwise spoil a run, and why no others
    PREEMPTING  the same, only under [packing] promise = "no_preemption"

The choice of a kernel is capacity: it rounds differently, as another GPU does. tests/unit/test_engine_keys.py compares
the sets with the installed vLLM and fails where a key is new or gone. Knows nothing of how settings are read.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass


def _keys(text: str) -> frozenset[str]:
    return frozenset(re.sub(r"#.*", "", text).split())


COMPUTED = _keys("""
    # the model: which files, which code
    model revision code_revision model_weights hf_config_path config_format hf_overrides model_loader_extra_config
    model_class_overrides model_impl trust_remote_code convert runner additional_config engram_config
    weight_transfer_config worker_cls worker_extension_cls
    # its text: prompts in, answers out
    tokenizer tokenizer_mode tokenizer_revision skip_tokenizer_init tokens_only io_processor_plugin
    reasoning_config reasoning_parser reasoning_parser_plugin structured_outputs_config pooler_config
    # its numbers
    dtype quantization quantization_config kv_cache_dtype kv_cache_dtype_skip_layers mamba_cache_dtype
    mamba_ssm_cache_dtype mamba_config enable_mamba_cache_stochastic_rounding mamba_cache_philox_rounds
    attention_config
    # what a token attends to
    max_model_len disable_sliding_window kv_sharing_fast_prefill swa_bounded_replay kv_transfer_config scheduler_cls
    # which token is taken, and with what log-probability
    seed use_fp64_gumbel generation_config override_generation_config logits_processors logprobs_mode watermark_config
    speculative_config spec_method spec_model spec_tokens diffusion_config enable_trace_replay
    # LoRA
    enable_lora default_mm_loras lora_dtype lora_target_modules enable_mixed_moe_lora_format enable_moe_shared_loras
""")

CAPACITY = _keys("""
    # memory for the cache and its layout
    gpu_memory_utilization kv_cache_memory_bytes num_gpu_blocks_override block_size prefix_match_unit mamba_block_size
    mamba_cache_mode enable_prefix_caching prefix_caching_hash_algo prefix_cache_retention_interval
    enable_mamba_shared_prefix_checkpoint use_replayssm replayssm_buffer_len disable_hybrid_kv_cache_manager
    kv_offloading_size kv_offloading_backend
    # the scheduler
    max_num_seqs max_num_active_seqs max_num_batched_tokens max_num_scheduled_tokens max_num_queued_reqs
    max_num_queued_tokens enable_chunked_prefill long_prefill_token_threshold long_prefill_token_threshold_adaptive
    scheduler_reserve_full_isl scheduling_policy prefill_schedule_interval watermark async_scheduling stream_interval
    max_logprobs
    # loading: the same weights by another way
    load_format download_dir hf_token ignore_patterns safetensors_load_strategy safetensors_prefetch_num_threads
    safetensors_prefetch_block_size max_parallel_loading_workers pt_load_map_location use_tqdm_on_load
    allow_deprecated_quantization
    # compilation and kernels
    enforce_eager compilation_config optimization_level performance_mode cudagraph_capture_sizes
    max_cudagraph_capture_size ir_op_priority kernel_config attention_backend moe_backend linear_backend mamba_backend
    mamba_ssu_algorithm gdn_prefill_backend kda_prefill_backend kda_decode_backend sparse_indexer_topk_backend
    enable_flashinfer_autotune disable_cascade_attn disable_custom_all_reduce
    # weights outside the GPU
    offload_backend cpu_offload_gb cpu_offload_params offload_group_size offload_num_in_group offload_prefetch_step
    offload_params enable_sleep_mode sleep_mode_offload_cudagraph sleep_preserve_parameter_names
    enable_cumem_allocator enable_nccl_comm_suspend
    # several devices and hosts
    tensor_parallel_size pipeline_parallel_size prefill_context_parallel_size decode_context_parallel_size
    dcp_comm_backend dcp_q_replicate dcp_kv_cache_interleave_size cp_kv_cache_interleave_size
    distributed_executor_backend master_addr master_port nnodes node_rank distributed_timeout_seconds
    cpu_distributed_timeout_seconds numa_bind numa_bind_nodes numa_bind_cpus device_ids
    data_parallel_size data_parallel_rank data_parallel_start_rank data_parallel_size_local data_parallel_address
    data_parallel_rpc_port data_parallel_hybrid_lb data_parallel_external_lb data_parallel_multi_port_external_lb
    data_parallel_backend dp_sync_interval disable_nccl_for_dp_synchronization
    enable_expert_parallel enable_ep_weight_filter all2all_backend enable_elastic_ep elastic_ep_max_dp_size eplb_config
    enable_eplb expert_placement_strategy enable_hc_sp enable_batch_sharded_sampling enable_dbo ubatch_size
    dbo_decode_token_threshold dbo_prefill_token_threshold enable_shm_tensor_arena
    fault_tolerance_config enable_fault_tolerance shutdown_timeout
    # LoRA
    max_loras max_lora_rank max_cpu_loras fully_sharded_loras specialize_active_lora max_lora_cls_labels
    enable_tower_connector_lora
    # statistics and logs
    disable_log_stats aggregate_engine_logging show_hidden_metrics_for_version otlp_traces_endpoint
    collect_detailed_traces per_request_spec_decode_metrics kv_cache_metrics kv_cache_metrics_sample
    custom_histogram_buckets cudagraph_metrics enable_layerwise_nvtx_tracing enable_mfu_metrics
    enable_logging_iteration_details jit_monitor_mode jit_monitor_verbose enable_mm_processor_stats profiler_config
    ray_workers_use_nsight logging_config log_level log_config_file kv_events_config fail_on_environ_validation
    # servers, and outputs that nobody reads
    served_model_name _api_process_count _api_process_rank renderer_num_workers enable_return_routed_experts
    return_sampling_mask aux_output_config enable_prompt_embeds
    # images, sound and video: prompts are text
    allowed_local_media_path allowed_media_domains language_model_only limit_mm_per_prompt enable_mm_embeds
    interleave_mm_strings media_io_kwargs mm_processor_kwargs mm_processor_cache_gb mm_processor_cache_type
    mm_hasher_algorithm mm_shm_cache_max_object_size_mb mm_encoder_only mm_encoder_tp_mode mm_encoder_attn_backend
    mm_encoder_attn_dtype mm_encoder_fp8_scale_path mm_encoder_fp8_scale_save_path mm_encoder_fp8_scale_save_margin
    skip_mm_profiling video_pruning_rate video_pruning_method mm_tensor_ipc mm_processor_device mm_ipc_gpu_memory_gb
    mm_device_do_normalize disable_chunked_mm_input ec_transfer_config ec_manager_config
""")


@dataclass(frozen=True, slots=True)
class RefusedValues:
    """Why a key may not have any value but `allowed`; with `forbidden`, only those may not be given."""

    why: str
    allowed: tuple[object, ...] = ()
    forbidden: tuple[object, ...] = ()

    def refuses(self, value: object) -> bool:
        """Whether the value may not be given; None is vLLM's own default."""
        if value is None:
            return False
        return value in self.forbidden if self.forbidden else value not in self.allowed


REFUSED: Mapping[str, RefusedValues] = {
    **dict.fromkeys(
        ("speculative_config", "spec_method", "spec_model", "spec_tokens"),
        RefusedValues("speculative decoding is refused, its KV blocks are not in the budget"),
    ),
    "diffusion_config": RefusedValues("a diffusion model writes many tokens at once; only one after another is read"),
    **dict.fromkeys(
        ("data_parallel_size", "data_parallel_size_local"),
        RefusedValues("vLLM's offline engine refuses it; run shards instead", allowed=(1,)),
    ),
    **dict.fromkeys(
        ("data_parallel_rank", "data_parallel_start_rank", "_api_process_rank"),
        RefusedValues("that is for vLLM's server; run shards instead", allowed=(0,)),
    ),
    **dict.fromkeys(
        ("data_parallel_external_lb", "data_parallel_hybrid_lb", "data_parallel_multi_port_external_lb"),
        RefusedValues("that is for vLLM's server; run shards instead", allowed=(False,)),
    ),
    **dict.fromkeys(
        ("enable_elastic_ep", "enable_fault_tolerance"),
        RefusedValues("vLLM has it only with data parallelism; run shards instead", allowed=(False,)),
    ),
    "runner": RefusedValues(
        "packrank needs a generative model; pooling models are not supported", allowed=("auto", "generate")
    ),
    "convert": RefusedValues(
        "packrank needs a generative model; pooling models are not supported", allowed=("auto", "none")
    ),
    "pooler_config": RefusedValues("packrank needs a generative model; pooling models are not supported"),
    **dict.fromkeys(
        ("tokenizer", "tokenizer_revision"),
        RefusedValues(
            "prompts are made and answers read with the tokenizer in the model's folder; put the other one there"
        ),
    ),
    **dict.fromkeys(
        ("hf_config_path", "model_weights"),
        RefusedValues("the run's identity names the files in the model's folder; put the other ones there"),
    ),
    "weight_transfer_config": RefusedValues("the weights could change during a night"),
    "load_format": RefusedValues(
        "the weights would be random, and their ranking would be stored", forbidden=("dummy",)
    ),
    "tokenizer_mode": RefusedValues(
        "prompts are made with the model's tokenizer.json, so answers are read with it", allowed=("auto", "hf")
    ),
    **dict.fromkeys(
        ("skip_tokenizer_init", "tokens_only"),
        RefusedValues("answers are read as text, which takes a tokenizer", allowed=(False,)),
    ),
    "io_processor_plugin": RefusedValues("prompts are token ids that no plugin may change"),
    **dict.fromkeys(("enable_lora", "max_lora_rank"), RefusedValues('give lora = "folder", which sets it')),
    **dict.fromkeys(
        ("max_loras", "max_cpu_loras"),
        RefusedValues("a run has one adapter, and each further one takes GPU memory", allowed=(1,)),
    ),
    "default_mm_loras": RefusedValues("prompts are text: no image or sound would choose an adapter"),
    "logprobs_mode": RefusedValues(
        "scores are read as log-probabilities", allowed=("raw_logprobs", "processed_logprobs")
    ),
    "watermark_config": RefusedValues("a watermark moves the tokens that rankings are read from"),
    "enable_trace_replay": RefusedValues("answers would be replayed, not the model's", allowed=(False,)),
    "kv_sharing_fast_prefill": RefusedValues("the log-probabilities of prompts would be wrong", allowed=(False,)),
    "disable_log_stats": RefusedValues("latencies and preemptions are read from vLLM's statistics", allowed=(False,)),
}

PREEMPTING: Mapping[str, RefusedValues] = {
    "long_prefill_token_threshold": RefusedValues(
        "several prompts are then begun at once, and preempt each other as they grow", allowed=(0,)
    ),
    "scheduler_reserve_full_isl": RefusedValues(
        "a prompt is then begun before there is room for the whole of it", allowed=(True,)
    ),
    "scheduler_cls": RefusedValues("another scheduler admits prompts by rules of its own"),
    **dict.fromkeys(
        ("kv_transfer_config", "kv_offloading_size"),
        RefusedValues("a connector then holds blocks of requests that have ended"),
    ),
    **dict.fromkeys(
        ("decode_context_parallel_size", "prefill_context_parallel_size"),
        RefusedValues("the blocks of a sequence are then spread over devices", allowed=(1,)),
    ),
}
