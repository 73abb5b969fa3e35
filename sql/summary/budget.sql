-- How the KV-cache budget was used. blocks | tokens
select
    runs.num_gpu_blocks,
    runs.block_size,
    runs.max_num_seqs,
    count(*) as num_batches,
    max(kv.block_budget) as block_budget,
    avg(kv.used_share) as mean_used_share,
    max(kv.used_share) as max_used_share,
    sum(kv.last_block_waste_tokens)::bigint as last_block_waste_tokens,
    sum(kv.num_preemptions)::bigint as num_preemptions
from kv_budget_use as kv
join runs using (run_id)
where kv.run_id = $run_id
group by runs.num_gpu_blocks, runs.block_size, runs.max_num_seqs;
