-- The queries of a run. query_id
select query_id from rankings where run_id = $run_id;
