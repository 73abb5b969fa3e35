-- The ten queries of a run whose first ten came from furthest. query_id | distance: places, summed over the first ten
select rankings.query_id, sum(abs(scores.first_stage_rank - scores.rank))::bigint as distance
from rankings
join scores on scores.run_id = rankings.scores_run_id and scores.query_id = rankings.query_id
where rankings.run_id = $run_id and scores.rank <= 10
group by rankings.query_id
having distance > 0
order by distance desc, rankings.query_id
limit 10;
