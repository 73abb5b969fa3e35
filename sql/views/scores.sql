-- The run that counts of each published night, and score rows: of every run, of every published night, and those to use.
-- Of several publications of a night the last one counts.
create or replace view published_nights as
select name, night, run_id, publication_no
from runs
where status = 'published'
qualify row_number() over (partition by name, night order by publication_no desc) = 1;

comment on view published_nights is 'The published run of each night of a series, the last one where there are several. Key: name, night.';
comment on column published_nights.name is 'Series';
comment on column published_nights.night is 'Logical date';
comment on column published_nights.run_id is 'Published run';
comment on column published_nights.publication_no is 'See runs.publication_no';

-- Those of reused queries included, which an earlier run computed. Filter by run_id.
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

-- Filter by name and night.
create or replace view published_scores as
select
    published_nights.name,
    published_nights.night,
    published_nights.run_id,
    all_scores.query_id,
    all_scores.doc_id,
    all_scores.rank,
    all_scores.score,
    all_scores.score_kind,
    all_scores.model_score,
    all_scores.first_stage_rank,
    all_scores.first_stage_score,
    all_scores.status
from published_nights
join all_scores using (run_id);

comment on view published_scores is 'The score rows of every published night, those of reused queries included. Key: name, night, query_id, doc_id.';
comment on column published_scores.name is 'Series';
comment on column published_scores.night is 'Night of the run';
comment on column published_scores.run_id is 'Published run';
comment on column published_scores.query_id is 'Query';
comment on column published_scores.doc_id is 'Document';
comment on column published_scores.rank is 'Place in the new order, from 1';
comment on column published_scores.score is 'Carries the order, see scores.score';
comment on column published_scores.score_kind is 'See scores.score_kind';
comment on column published_scores.model_score is 'See scores.model_score';
comment on column published_scores.first_stage_rank is 'Place in the first stage''s order, from 1';
comment on column published_scores.first_stage_score is 'The first stage''s score';
comment on column published_scores.status is 'ranked, below_depth, fallback';

-- The scores to use: for each series the published run of the greatest night.
create or replace view latest_scores as
with latest as (
    select name, night, run_id
    from published_nights
    qualify row_number() over (partition by name order by night desc) = 1
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
comment on column latest_scores.first_stage_rank is 'Place in the first stage''s order, from 1';
comment on column latest_scores.first_stage_score is 'The first stage''s score';
comment on column latest_scores.status is 'ranked, below_depth, fallback';
