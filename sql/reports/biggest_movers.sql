-- The fifty documents that the newest published runs moved up most. moved: places up
select
    name,
    night,
    query_id,
    doc_id,
    first_stage_rank,
    rank,
    first_stage_rank - rank as moved
from latest_scores
order by moved desc, query_id, rank
limit 50;
