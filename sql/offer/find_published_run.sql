-- The run that a night of a series shows: of several published ones the last. run_id
select run_id
from runs
where name = $name and night = $night::date and status = 'published'
order by published_at desc
limit 1;
