-- The largest batch number of a run's shard. batch_no: -1 if there is none
select coalesce(max(batch_no), -1) as batch_no from batches where run_id = $run_id and shard = $shard;
