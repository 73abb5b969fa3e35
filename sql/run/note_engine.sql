-- What the engine reported at its start.
update runs
set
    device = $device,
    dtype = $dtype,
    enable_prefix_caching = $enable_prefix_caching,
    num_gpu_blocks = $num_gpu_blocks,
    block_size = $block_size,
    max_num_seqs = $max_num_seqs,
    max_num_batched_tokens = $max_num_batched_tokens
where run_id = $run_id;
