-- Deletes the batches of the shard of gone, and the rows set aside of the queries of torn, which are its own.
delete from batches where (run_id, shard) in (select run_id, shard from gone);
delete from engine_steps where (run_id, shard) in (select run_id, shard from gone);
delete from quarantine
where exists (
    select 1
    from torn
    where torn.run_id = quarantine.run_id and torn.query_id is not distinct from quarantine.query_id
);
