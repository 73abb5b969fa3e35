-- One row a check of a run.
create table check_results (
    run_id varchar not null,
    check_name varchar not null,
    num_offending bigint not null,
    share double not null,
    max_share double not null,
    passed boolean not null,
    skip_reason varchar
);

comment on table check_results is 'What the checks before publishing found. Key: run_id, check_name.';
comment on column check_results.run_id is 'Run';
comment on column check_results.check_name is 'The check: a file of sql/checks, which returns the offending rows';
comment on column check_results.num_offending is 'Offending queries, candidates, passages, batches, canaries, or places of first tens';
comment on column check_results.share is 'num_offending divided by all of its kind; 0 where there are none';
comment on column check_results.max_share is 'Largest share that passes';
comment on column check_results.passed is 'share <= max_share; true where it was skipped';
comment on column check_results.skip_reason is 'Why there was nothing to check; null where it was checked';
