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
    blocks_used integer not null,
    batch_no integer,
    num_new_seqs integer,
    stored_tokens integer,
    schedule_ms double,
    update_ms double,
    block_table_ms double
);

comment on table engine_steps is 'The engine''s timeline, one row a step, where it was asked for ([packing] timeline). Key: run_id, shard, batch_no, step.';
comment on column engine_steps.run_id is 'Run';
comment on column engine_steps.shard is 'Shard';
comment on column engine_steps.step is 'Engine step within its batch, from 0';
comment on column engine_steps.started_at is 'Start, UTC';
comment on column engine_steps.elapsed_ms is 'Wall time of the whole step, milliseconds';
comment on column engine_steps.num_prefill_seqs is 'Sequences scheduled for prefill';
comment on column engine_steps.num_decode_seqs is 'Sequences scheduled for decode';
comment on column engine_steps.num_waiting_seqs is 'Sequences still waiting when the step had been filled';
comment on column engine_steps.prefill_tokens is 'Prompt tokens computed';
comment on column engine_steps.decode_tokens is 'Tokens generated';
comment on column engine_steps.blocks_used is 'KV-cache blocks in use when the step had been filled';
comment on column engine_steps.batch_no is 'Batch that the step worked on';
comment on column engine_steps.num_new_seqs is 'Sequences scheduled for the first time: as many block tables were made';
comment on column engine_steps.stored_tokens is 'Tokens that the running sequences have in the KV cache when the step had been filled; a shared prefix counts for each';
comment on column engine_steps.schedule_ms is 'Time inside Scheduler.schedule, milliseconds';
comment on column engine_steps.update_ms is 'Time inside Scheduler.update_from_output, milliseconds';
comment on column engine_steps.block_table_ms is 'Time to allocate and free blocks (also part of schedule_ms and update_ms) and to write the worker''s rows of block ids, milliseconds';
