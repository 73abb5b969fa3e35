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
comment on column scores.score is 'Carries the order: strictly falls with rank as a 32-bit float, in the unit of score_kind; not comparable between queries unless that is p_yes';
comment on column scores.score_kind is 'Unit of score: reciprocal_rank (1 / rank), p_yes (probability of yes), query_likelihood (mean log-probability of a query token), points, win_rate, page_rank; first_stage_order where no model placed the document';
comment on column scores.model_score is 'The model''s own number: log-probability in the last window that showed it, log-odds against the pivot (tdpart), or the unit of score_kind; null where there is none';
comment on column scores.first_stage_rank is 'Place in the first stage''s order after rows were set aside, from 1';
comment on column scores.first_stage_score is 'The first stage''s score as given; null where it gave none';
comment on column scores.status is 'ranked, below_depth (deeper than the model looked), fallback (the model never named it)';
