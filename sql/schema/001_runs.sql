-- One row a run, updated as it goes.
create table runs (
    run_id varchar primary key,
    name varchar not null,
    night date not null,
    status varchar not null,
    published_at timestamptz,
    is_degraded boolean not null,
    failed_checks varchar[],
    started_at timestamptz not null,
    finished_at timestamptz,
    settings json not null,
    resolved json not null,
    input_digest varchar not null,
    input_partition varchar,
    input_notes json,
    model varchar not null,
    model_identity varchar not null,
    strategy varchar not null,
    decode_mode varchar not null,
    versions json not null,
    git_commit varchar,
    host varchar not null,
    device varchar,
    num_gpu_blocks integer,
    block_size integer,
    max_num_seqs integer,
    max_num_batched_tokens integer,
    num_queries bigint,
    num_candidates bigint,
    num_reused_queries bigint,
    flow_run_id varchar,
    error varchar,
    is_limited boolean,
    recipe json,
    reuse_run_id varchar,
    dtype varchar,
    enable_prefix_caching boolean,
    offered_at timestamptz,
    publication_no bigint,
    input_warnings varchar[],
    stages varchar[],
    elapsed_s double generated always as ((epoch_ms(finished_at) - epoch_ms(started_at)) / 1000) virtual
);

comment on table runs is 'One row per run: its night, input, settings, model and result.';
comment on column runs.run_id is '{night}-{name}-{8 hex digits of settings and input}, -rN for a repeated run';
comment on column runs.name is 'The series that the run belongs to; latest_scores has one published run of each';
comment on column runs.night is 'Logical date: the schedule''s last fire time not after the start, in the schedule''s time zone';
comment on column runs.status is 'running, failed, cancelled, superseded, complete (every query has a row, not published), published';
comment on column runs.published_at is 'When the scores became those of latest_scores by the host''s clock, UTC; null if not published';
comment on column runs.is_degraded is 'Whether a check failed';
comment on column runs.failed_checks is 'Names of the checks that failed, see check_results';
comment on column runs.started_at is 'First start, UTC; a resumed run keeps it';
comment on column runs.finished_at is 'Last end, UTC; null while running';
comment on column runs.settings is 'The settings as given, defaults filled in';
comment on column runs.resolved is 'Sizes as resolved before the first batch: window, stride, depth, prompt and passage limits in tokens';
comment on column runs.input_digest is 'SHA-256 over relative path, size and footer of every input file';
comment on column runs.input_partition is 'Hive partition read, by input; null where there is none';
comment on column runs.input_notes is 'Repairs made to the input without setting rows aside: what -> number of rows';
comment on column runs.model is 'Folder or hub name, as in the settings';
comment on column runs.model_identity is 'Hub commit, or SHA-256 over the folder''s configuration, tokenizer, chat template and weight files';
comment on column runs.strategy is 'What decides the first places, see stages for all: pointwise, single, sliding, tdpart, setwise, tourrank, jointrank, blitz, pairwise';
comment on column runs.decode_mode is 'How the strategy''s windows are asked: first_token, permutation, reasoning, select, yes_no, query_likelihood';
comment on column runs.versions is 'Versions of packrank, Python and the libraries that matter';
comment on column runs.git_commit is 'Commit of the checkout, with + where files were changed; null outside git';
comment on column runs.host is 'Machine that ran it last';
comment on column runs.device is 'Device as vLLM names it; null until the engine was started';
comment on column runs.num_gpu_blocks is 'KV-cache blocks, the null block included; null until the engine was started';
comment on column runs.block_size is 'Tokens a KV-cache block, of the engine; cache groups of a hybrid model may have others';
comment on column runs.max_num_seqs is 'Sequences that the engine runs at once';
comment on column runs.max_num_batched_tokens is 'Tokens of one engine step at the most';
comment on column runs.num_queries is 'Queries of the run, those that cannot be ranked included';
comment on column runs.num_candidates is 'Candidate rows that get a score';
comment on column runs.num_reused_queries is 'Queries whose scores are an earlier run''s';
comment on column runs.flow_run_id is 'Prefect flow run that ran it last; null without Prefect';
comment on column runs.error is 'One line on why it failed; null otherwise';
comment on column runs.is_limited is 'Whether only the first queries were ranked (a trial, never published)';
comment on column runs.recipe is 'Digest by part of what recipe_digest covers: model, prompt, settings';
comment on column runs.reuse_run_id is 'Run whose rankings were looked at for reuse; null where there was none, or reuse was not asked for';
comment on column runs.dtype is 'Number type of the weights, as vLLM resolved it; null until the engine was started';
comment on column runs.enable_prefix_caching is 'Whether prompts share the cache of equal beginnings; null until the engine was started';
comment on column runs.offered_at is 'When all that follows a publication was done: retention, export, copy, UTC; null if never, or not since it was published last';
comment on column runs.publication_no is 'Number of the publication, greater than that of every run that was published before; null if not published';
comment on column runs.input_warnings is 'What of the input is not of the run''s night, a sentence each: an older partition, files without a date';
comment on column runs.stages is 'What ranks, in words, one step after the other: a cascade has two';
comment on column runs.elapsed_s is 'First start to last end, seconds; null while running';
