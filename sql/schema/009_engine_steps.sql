-- One row an engine step, only where a timeline was asked for.
create table engine_steps (
    run_id varchar not null,
    shard integer not null,
    step bigint not null,
    started_at timestamptz not null,
    elapsed_ms double not null,
    num_prefill_seqs integer not null,
    num_decode_seqs integer not null,
    num_waiting_seqs integer not null,
    prefill_tokens integer not null,
    decode_tokens integer not null,
    blocks_used integer not null
);

comment on table engine_steps is 'The engine''s timeline, one row a step, where a study asked for it. Key: run_id, shard, step.';
comment on column engine_steps.run_id is 'Run';
comment on column engine_steps.shard is 'Shard';
comment on column engine_steps.step is 'Engine step, from 0';
comment on column engine_steps.started_at is 'Start, UTC';
comment on column engine_steps.elapsed_ms is 'Wall time of the step, milliseconds';
comment on column engine_steps.num_prefill_seqs is 'Sequences scheduled for prefill';
comment on column engine_steps.num_decode_seqs is 'Sequences scheduled for decode';
comment on column engine_steps.num_waiting_seqs is 'Sequences waiting to be scheduled';
comment on column engine_steps.prefill_tokens is 'Prompt tokens computed';
comment on column engine_steps.decode_tokens is 'Tokens generated';
comment on column engine_steps.blocks_used is 'KV-cache blocks in use at its end';
