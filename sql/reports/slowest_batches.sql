-- The twenty batches that took the engine longest. engine_s: seconds
select
    run_id,
    shard,
    batch_no,
    num_prompts,
    prompt_tokens,
    output_tokens,
    engine_s,
    (prompt_tokens + output_tokens) / nullif(engine_s, 0) as tokens_per_s,
    num_preemptions
from batches
where num_prompts > 0
order by engine_s desc
limit 20;
