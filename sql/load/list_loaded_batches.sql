-- Batches of a run's shard that are in the database already. batch_no
select batch_no from batches where run_id = $run_id and shard = $shard;
