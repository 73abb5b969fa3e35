-- Rows set aside, by reason. source | reason | num_rows
select source, reason, count(*) as num_rows
from quarantine
where run_id = $run_id
group by source, reason
order by source, reason;
