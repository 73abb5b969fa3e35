-- The finished run of a series that started last. The columns of runs
select *
from runs
where name = $name and status in ('complete', 'published')
order by started_at desc
limit 1;
