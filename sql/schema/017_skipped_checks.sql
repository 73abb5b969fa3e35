-- A check with nothing to look at says so, and a canary says which recipe asked it, so that nights of one recipe compare.
alter table check_results add column skip_reason varchar;
alter table canaries add column recipe_digest ubigint;

comment on column check_results.num_offending is 'Offending queries, candidates, passages, batches, canaries, or places of first tens';
comment on column check_results.passed is 'share <= max_share; true where it was skipped';
comment on column check_results.skip_reason is 'Why there was nothing to check; null where it was checked';
comment on column canaries.passed is 'Whether the margin is above 0; canary_bands has the band of earlier nights';
comment on column canaries.recipe_digest is '64 bits over model, prompt, strategy and sizes, as rankings.recipe_digest; null for a run older than this column';
