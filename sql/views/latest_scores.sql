-- The scores to use: for each series the published run of the greatest night.
create or replace view latest_scores as
with latest as (
    select run_id, name, night, publication_no
    from runs
    where status = 'published'
    qualify row_number() over (partition by name order by night desc, publication_no desc) = 1
)

select
    latest.name,
    latest.night,
    latest.run_id,
    all_scores.query_id,
    all_scores.doc_id,
    all_scores.rank,
    all_scores.score,
    all_scores.score_kind,
    all_scores.model_score,
    all_scores.first_stage_rank,
    all_scores.first_stage_score,
    all_scores.status
from latest
join all_scores using (run_id);

comment on view latest_scores is 'For each series the score rows of the published run of the greatest night. Key: name, query_id, doc_id.';
comment on column latest_scores.name is 'Series';
comment on column latest_scores.night is 'Night of the run';
comment on column latest_scores.run_id is 'Published run';
comment on column latest_scores.query_id is 'Query';
comment on column latest_scores.doc_id is 'Document';
comment on column latest_scores.rank is 'Place in the new order, from 1';
comment on column latest_scores.score is 'Carries the order, see scores.score';
comment on column latest_scores.score_kind is 'See scores.score_kind';
comment on column latest_scores.model_score is 'See scores.model_score';
comment on column latest_scores.first_stage_rank is 'Place in the first stage''s order';
comment on column latest_scores.first_stage_score is 'The first stage''s score';
comment on column latest_scores.status is 'ranked, below_depth, fallback';
