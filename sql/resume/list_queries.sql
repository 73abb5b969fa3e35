-- The queries of a run of which any row is there. run_id | query_id
select distinct $run_id as run_id, query_id
from (
    select query_id from rankings where run_id = $run_id
    union all
    select query_id from windows where run_id = $run_id
    union all
    select query_id from quarantine where run_id = $run_id
);
