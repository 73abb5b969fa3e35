-- One row a query of a run, whatever became of it.
create table rankings (
    run_id varchar not null,
    query_id varchar not null,
    num_candidates integer not null,
    depth integer not null,
    num_windows integer not null,
    num_rounds integer not null,
    status varchar not null,
    query_digest ubigint not null,
    candidates_digest ubigint not null,
    documents_digest ubigint not null,
    recipe_digest ubigint not null,
    scores_run_id varchar not null,
    reuse_reason varchar
);

comment on table rankings is 'One row a query of a run, whatever became of it. Key: run_id, query_id.';
comment on column rankings.run_id is 'Run';
comment on column rankings.query_id is 'Query';
comment on column rankings.num_candidates is 'Candidates that have a score row';
comment on column rankings.depth is 'Candidates that the model was to rank; the rest keeps first-stage order';
comment on column rankings.num_windows is 'Windows asked';
comment on column rankings.num_rounds is 'Rounds that depended on each other';
comment on column rankings.status is 'ranked, single (0 or 1 candidate, no call), partial (some windows fell back), fallback, reused, no_candidates, quarantined (set aside with its input row, or because the engine died of a prompt)';
comment on column rankings.query_digest is '64 bits over the query''s text';
comment on column rankings.candidates_digest is '64 bits over the candidates'' ids in first-stage order';
comment on column rankings.documents_digest is '64 bits over the candidates'' titles and texts in first-stage order';
comment on column rankings.recipe_digest is '64 bits over everything else that the ranking depends on: model, prompt, strategy, sizes';
comment on column rankings.scores_run_id is 'Run whose score rows are this query''s: this run, or the one that computed them; never a chain';
comment on column rankings.reuse_reason is 'Why the query was ranked rather than reused: first seen, model changed, prompt changed, settings changed, text changed, candidates changed, document changed, fell back last time; null where reuse was not looked for, or the query is reused';
