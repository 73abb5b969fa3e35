-- Queries or candidates, if the run has fewer than usual by more than max_fall. told | num_offending: 1
select format('{} {}, usually {:.0f}', number, quantity, usual_number) as told, 1 as num_offending
from volumes
where run_id = $run_id and change < -$max_fall::double
order by quantity desc;
