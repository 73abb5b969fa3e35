-- The ten queries of both nights that changed most. overlap_at_10: share | num_moved: candidates | has_new_first
select changes.query_id, changes.overlap_at_10, changes.num_moved, changes.has_new_first
from churn as changes
join rankings as theirs on theirs.run_id = changes.previous_run_id and theirs.query_id = changes.query_id
where changes.run_id = $run_id and changes.num_moved > 0
order by changes.overlap_at_10, changes.num_moved desc, changes.query_id
limit 10;
