-- The longest list, if it is over the limit. query_id | num_candidates
select queries.query_id, count(*) as num_candidates
from ordered
join queries using (query_index)
group by queries.query_id
having count(*) > $max_candidates
order by num_candidates desc
limit 1;
