-- Counts the queries whose scores are an earlier run's.
update runs
set num_reused_queries = (select count(*) from rankings where run_id = $run_id and status = 'reused')
where run_id = $run_id;
