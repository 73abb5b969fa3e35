-- The staged queries in order. query_id | text | num_candidates | status
select query_id, text, num_candidates, status from staged_queries order by query_index;
