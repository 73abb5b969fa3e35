-- How full each batch's KV-cache budget was.
create or replace view kv_budget_use as
select
    run_id,
    shard,
    batch_no,
    num_prompts,
    num_blocks,
    block_budget,
    num_blocks / nullif(block_budget, 0) as used_share,
    last_block_waste_tokens,
    last_block_waste_tokens / nullif(prompt_tokens + output_tokens, 0) as waste_share,
    num_preemptions
from batches
where num_prompts > 0;

comment on view kv_budget_use is 'How full each batch''s KV-cache budget was, and what its last blocks wasted. Key: run_id, shard, batch_no.';
comment on column kv_budget_use.run_id is 'Run';
comment on column kv_budget_use.shard is 'Shard';
comment on column kv_budget_use.batch_no is 'Batch';
comment on column kv_budget_use.num_prompts is 'Prompts';
comment on column kv_budget_use.num_blocks is 'Blocks that its prompts may need';
comment on column kv_budget_use.block_budget is 'Blocks that it could hold';
comment on column kv_budget_use.used_share is 'num_blocks / block_budget';
comment on column kv_budget_use.last_block_waste_tokens is 'Empty token places in last blocks';
comment on column kv_budget_use.waste_share is 'Those places per token stored';
comment on column kv_budget_use.num_preemptions is 'Preemptions; 0 by promise';
