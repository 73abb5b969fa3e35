-- Batches over their KV-cache budget, or with a preemption. shard | batch_no | num_offending: 1
select shard, batch_no, 1 as num_offending
from batches
where run_id = $run_id and (num_blocks > block_budget or num_preemptions > 0)
order by shard, batch_no;
