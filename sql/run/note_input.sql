-- What staging found.
update runs
set num_queries = $num_queries, num_candidates = $num_candidates, num_reused_queries = 0, input_notes = $notes::json
where run_id = $run_id;
