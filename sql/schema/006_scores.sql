-- One row a candidate of a query.
create table scores (
    run_id varchar not null,
    query_id varchar not null,
    doc_id varchar not null,
    rank integer not null,
    score float not null,
    score_kind varchar not null,
    model_score float,
    first_stage_rank integer not null,
    first_stage_score double,
    status varchar not null
);

comment on table scores is 'One row a candidate of a query, best first by rank. Key: run_id, query_id, doc_id. For the newest published ones see latest_scores.';
comment on column scores.run_id is 'Run that computed the row';
comment on column scores.query_id is 'Query';
comment on column scores.doc_id is 'Document';
comment on column scores.rank is 'Place in the new order, from 1 without gaps';
comment on column scores.score is 'Carries the order: strictly decreases with rank, also as a 32-bit float. Not comparable between queries';
comment on column scores.score_kind is 'reciprocal_rank (1 / rank, placed by the model) or first_stage_order (1 / rank, the model did not place it)';
comment on column scores.model_score is 'Log-probability of the document''s identifier in the last window that showed it (first_token only); comparable inside that window';
comment on column scores.first_stage_rank is 'Place in the first stage''s order after rows were set aside, from 1';
comment on column scores.first_stage_score is 'The first stage''s score as given; null where it gave none';
comment on column scores.status is 'ranked, below_depth (deeper than the model looked), fallback (the model never named it)';
