-- Queries or candidates, if the run has more than usual by more than max_growth. told | num_offending: 1
select format('{} {}, usually {:.0f}', number, quantity, usual_number) as told, 1 as num_offending
from volumes
where run_id = $run_id and change > $max_growth::double
order by quantity desc;
