-- Queries of a run that have their row already, within a span of ids. query_id
select query_id from rankings where run_id = $run_id and query_id between $first_query_id and $last_query_id;
