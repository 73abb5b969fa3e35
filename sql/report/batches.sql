-- How each batch used its budget, in at most $max_points points of neighbouring batches. first_batch: number of the
-- point's first batch | num_blocks, block_budget: largest of the point | *_share: of its tokens | num_batches: of the run
with numbered as (
    select
        *,
        row_number() over (order by shard, batch_no) - 1 as place,
        count(*) over () as num_batches
    from batches
    where run_id = $run_id and num_prompts > 0
)

select
    min(place) as first_batch,
    max(num_blocks) as num_blocks,
    max(block_budget) as block_budget,
    sum(last_block_waste_tokens) / nullif(sum(prompt_tokens + output_tokens), 0) as waste_share,
    sum(cached_tokens) / nullif(sum(prompt_tokens), 0) as cached_share,
    any_value(num_batches) as num_batches
from numbered
group by place * least($max_points, num_batches) // num_batches
order by first_batch;
