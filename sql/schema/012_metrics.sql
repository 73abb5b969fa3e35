-- Quality against judgments.
create table metrics (
    run_id varchar not null,
    ranking varchar not null,
    measure varchar not null,
    query_id varchar,
    value double not null,
    num_queries integer not null,
    qrels_digest varchar not null
);

comment on table metrics is 'Quality of a run against judgments, by query and on average. Key: run_id, ranking, measure, query_id.';
comment on column metrics.run_id is 'Run';
comment on column metrics.ranking is 'reranked (the run''s order) or first_stage (the order that it was given)';
comment on column metrics.measure is 'As ir-measures names it, trec_eval''s definition: nDCG@10 has a linear gain';
comment on column metrics.query_id is 'Query; null: mean over all judged queries, those without results counted as 0';
comment on column metrics.value is 'Value of the measure';
comment on column metrics.num_queries is 'Judged queries that the value is over';
comment on column metrics.qrels_digest is 'SHA-256 over the judgments'' files: path, size and footer of Parquet, the lines of a text file';
