-- The published run before a complete or published run in its series, as the view churn has it. run_id
select earlier.run_id
from runs as later
join runs as earlier
    on earlier.name = later.name
    and earlier.run_id <> later.run_id
    and (
        earlier.night < later.night
        or (earlier.night = later.night and earlier.published_at < coalesce(later.published_at, 'infinity'::timestamptz))
    )
where later.run_id = $run_id and later.status in ('complete', 'published') and earlier.status = 'published'
order by earlier.night desc, earlier.published_at desc
limit 1;
