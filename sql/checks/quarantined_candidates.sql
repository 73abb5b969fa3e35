-- Candidate rows set aside. query_id | num_offending: rows
select query_id, count(*) as num_offending
from quarantine
where run_id = $run_id and source = 'candidates'
group by query_id
order by query_id;
