-- What a run's rankings depend on beside their texts, by part: why a query was not reused is told from it.
alter table runs add column recipe json;

comment on column runs.recipe is 'Digest by part of what recipe_digest covers: model, prompt, settings; null for a run older than this column';
comment on column rankings.reuse_reason is 'Why the query was ranked rather than reused: first seen, model changed, prompt changed, settings changed, text changed, candidates changed, document changed, fell back last time; null where reuse was not looked for, or the query is reused';

alter table runs add column reuse_run_id varchar;

comment on column runs.reuse_run_id is 'Run whose rankings were looked at for reuse; null where there was none, or reuse was not asked for';
comment on column rankings.status is 'ranked, single (0 or 1 candidate, no call), partial (some windows fell back), fallback, reused, no_candidates, quarantined (set aside with its input row, or because the engine died of a prompt)';
comment on column quarantine.reason is 'null query_id, null doc_id, query not found, document not found, null or empty query text, query too long, null or empty document text, no candidates, engine died';
