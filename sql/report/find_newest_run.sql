-- The finished run that started last, of any series. run_id
select run_id
from runs
where status in ('complete', 'published')
order by started_at desc, run_id desc
limit 1;
