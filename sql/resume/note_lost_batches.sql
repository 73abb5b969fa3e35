-- Puts a row without prompts in the place of each missing batch, so that a gap is met once; batch 0 is committed again.
insert into batches by name
select
    $run_id as run_id,
    $shard as shard,
    range as batch_no,
    'lost' as driver,
    0 as num_prompts,
    0 as prompt_tokens,
    0 as cached_tokens,
    0 as output_tokens,
    0 as num_blocks,
    0 as block_budget,
    0 as last_block_waste_tokens,
    0 as num_preemptions,
    now() as submitted_at,
    now() as finished_at,
    0 as engine_s
from range(1, (select coalesce(max(batch_no), 1) from batches where run_id = $run_id and shard = $shard))
where range not in (select batch_no from batches where run_id = $run_id and shard = $shard);
