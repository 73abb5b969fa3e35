-- How many queries each night reused, and why it ranked the others. why: null for those reused, and where reuse was not looked for
select runs.night, runs.name, runs.run_id, rankings.status = 'reused' as is_reused, rankings.reuse_reason as why, count(*) as num_queries
from rankings
join runs using (run_id)
group by all
order by runs.night desc, runs.run_id, is_reused desc, num_queries desc, why;
