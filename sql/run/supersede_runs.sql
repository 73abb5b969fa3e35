-- Older unfinished runs of the same series and night give way to a new one.
update runs
set status = 'superseded', finished_at = coalesce(finished_at, now())
where name = $name and night = $night::date and run_id <> $run_id and status in ('failed', 'cancelled');
