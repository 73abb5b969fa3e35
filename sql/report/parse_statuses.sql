-- What a run's answers were like. parse_status: see windows.parse_status | num_windows | num_repeats: asked again
select parse_status, count(*) as num_windows, count(*) filter (attempt > 0) as num_repeats
from windows
where run_id = $run_id
group by parse_status
order by num_windows desc, parse_status;
