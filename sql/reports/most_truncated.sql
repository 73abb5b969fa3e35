-- The fifty queries that lost most passage tokens, of each series' newest published run.
select truncations.*
from truncations
semi join latest_scores using (run_id)
order by truncated_tokens desc
limit 50;
