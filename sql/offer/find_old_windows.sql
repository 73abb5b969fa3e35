-- Finished runs older than the newest $keep_nights published nights that still have batches. A degraded one is left alone:
-- its checks run again when its command does, and look at windows. run_id
with published_nights as (
    select night, row_number() over (order by night desc) as place
    from (select distinct night from runs where name = $name and status = 'published')
)

select run_id
from runs
where
    name = $name
    and run_id <> $run_id
    and status in ('complete', 'published')
    and not is_degraded
    and night < (select night from published_nights where place = $keep_nights)
    and run_id in (select run_id from batches)
order by run_id;
