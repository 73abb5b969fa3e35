-- Deletes what a shard has beside the rows of its queries, which are those of torn.
delete from batches where run_id = $run_id and shard = $shard;
delete from engine_steps where run_id = $run_id and shard = $shard;
delete from quarantine
where run_id = $run_id and exists (select 1 from torn where torn.query_id is not distinct from quarantine.query_id);
