-- Queries that the model did not rank, or ranked only in part, of all runs, newest night first.
select runs.night, rankings.run_id, rankings.query_id, rankings.status, rankings.num_windows, rankings.num_candidates
from rankings
join runs using (run_id)
where rankings.status in ('fallback', 'partial')
order by runs.night desc, rankings.run_id, rankings.query_id;
