-- How far each night's orders are from the published night before it, trials left out. num_*: queries; mean_*: without new ones
select
    runs.night,
    runs.name,
    churn.run_id,
    churn.previous_run_id,
    count(*) as num_queries,
    count(*) filter (churn.change = 'new_query') as num_new,
    count(*) filter (churn.change = 'reused') as num_reused,
    count(*) filter (churn.change = 'input_changed') as num_input_changed,
    count(*) filter (churn.change = 'recipe_changed') as num_recipe_changed,
    count(*) filter (churn.change = 'moved') as num_moved,
    count(*) filter (churn.change = 'unchanged') as num_unchanged,
    avg(churn.overlap_at_10) filter (churn.change <> 'new_query') as mean_overlap_at_10,
    avg(churn.overlap_at_10) filter (churn.change in ('moved', 'unchanged')) as mean_overlap_without_cause,
    avg(churn.rbo) as mean_rbo
from churn
join runs using (run_id)
where runs.is_limited is not true
group by runs.night, runs.name, churn.run_id, churn.previous_run_id
order by runs.night desc, runs.name, churn.run_id;
