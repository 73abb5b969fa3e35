-- Numbers below a shard's largest that no batch has. batch_no
select range::integer as batch_no
from range((select coalesce(max(batch_no), -1) from batches where run_id = $run_id and shard = $shard))
where range not in (select batch_no from batches where run_id = $run_id and shard = $shard)
order by batch_no;
