-- How many sequences of a batch run at once and the KV-cache blocks that they need, against the cache; and what limits them.
create or replace view kv_budget_use as
with sized as (
    select
        batches.*,
        runs.num_gpu_blocks - 1 as cache_blocks,
        runs.max_num_seqs,
        batches.num_blocks / batches.num_prompts as sequence_blocks,
        (runs.num_gpu_blocks - 1) / nullif(batches.num_blocks / batches.num_prompts, 0) as seqs_by_cache,
        -- A one-token answer's sequence lives for the step that computes its prompt; longer ones stay while others come.
        case
            when batches.output_tokens <= batches.num_prompts
                then greatest(
                    1,
                    runs.max_num_batched_tokens
                    / nullif((batches.prompt_tokens - batches.cached_tokens) / batches.num_prompts, 0)
                )
        end as seqs_by_tokens
    from batches
    join runs using (run_id)
    where batches.num_prompts > 0
),

limited as (
    select *, least(num_prompts, max_num_seqs, seqs_by_cache, seqs_by_tokens) as seqs_at_once
    from sized
)

select
    run_id,
    shard,
    batch_no,
    num_prompts,
    cache_blocks,
    seqs_at_once,
    case
        when cache_blocks is null then null
        when seqs_at_once = seqs_by_cache then 'cache'
        when seqs_at_once = max_num_seqs then 'max_num_seqs'
        when seqs_at_once = seqs_by_tokens then 'max_num_batched_tokens'
        else 'number of prompts'
    end as limited_by,
    ceil(seqs_at_once * sequence_blocks)::bigint as blocks_at_once,
    ceil(seqs_at_once * sequence_blocks) / nullif(cache_blocks, 0) as cache_share,
    num_blocks as blocks_committed_together,
    last_block_waste_tokens,
    last_block_waste_tokens / nullif(prompt_tokens + output_tokens, 0) as waste_share,
    num_preemptions
from limited;

comment on view kv_budget_use is 'How many sequences of a batch run at once, the KV-cache blocks that they need, and what limits them: estimates of mean sequences; engine_steps has what was measured. Key: run_id, shard, batch_no.';
comment on column kv_budget_use.run_id is 'Run';
comment on column kv_budget_use.shard is 'Shard';
comment on column kv_budget_use.batch_no is 'Batch';
comment on column kv_budget_use.num_prompts is 'Prompts';
comment on column kv_budget_use.cache_blocks is 'KV-cache blocks of the engine that sequences may have: all but the null block; null until the engine was started';
comment on column kv_budget_use.seqs_at_once is 'Sequences that can run at once, estimated: the least that the limits allow';
comment on column kv_budget_use.limited_by is 'What allows no more: cache, max_num_seqs, max_num_batched_tokens (tokens of one engine step, one-token answers only), or number of prompts (all of them run at once)';
comment on column kv_budget_use.blocks_at_once is 'KV-cache blocks of so many sequences, with the most that their answers may need';
comment on column kv_budget_use.cache_share is 'blocks_at_once / cache_blocks';
comment on column kv_budget_use.blocks_committed_together is 'KV-cache blocks of all prompts of the batch, which is committed as one but runs in several loads of the cache, one after another: not blocks in use';
comment on column kv_budget_use.last_block_waste_tokens is 'Empty token places in last blocks';
comment on column kv_budget_use.waste_share is 'Those places per token stored';
comment on column kv_budget_use.num_preemptions is 'Preemptions; 0 by promise';
