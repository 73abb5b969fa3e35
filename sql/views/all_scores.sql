-- The score rows of every run, those of reused queries included, which an earlier run computed. Filter by run_id.
create or replace view all_scores as
select
    rankings.run_id,
    rankings.query_id,
    scores.doc_id,
    scores.rank,
    scores.score,
    scores.score_kind,
    scores.model_score,
    scores.first_stage_rank,
    scores.first_stage_score,
    scores.status
from rankings
join scores on scores.run_id = rankings.scores_run_id and scores.query_id = rankings.query_id;

comment on view all_scores is 'The score rows of every run, those of reused queries included. Key: run_id, query_id, doc_id.';
comment on column all_scores.run_id is 'Run, also where an earlier run computed the row: see rankings.scores_run_id';
comment on column all_scores.query_id is 'Query';
comment on column all_scores.doc_id is 'Document';
comment on column all_scores.rank is 'Place in the new order, from 1';
comment on column all_scores.score is 'Carries the order, see scores.score';
comment on column all_scores.score_kind is 'See scores.score_kind';
comment on column all_scores.model_score is 'See scores.model_score';
comment on column all_scores.first_stage_rank is 'Place in the first stage''s order';
comment on column all_scores.first_stage_score is 'The first stage''s score';
comment on column all_scores.status is 'ranked, below_depth, fallback';
