-- Canaries of which the irrelevant passage was above the other one, or level with it. pair | num_offending: 1
select pair, 1 as num_offending
from canaries
where run_id = $run_id and not passed
order by pair;
