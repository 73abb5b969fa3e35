-- One row an input row that was set aside.
create table quarantine (
    run_id varchar not null,
    source varchar not null,
    query_id varchar,
    doc_id varchar,
    reason varchar not null,
    detail varchar
);

comment on table quarantine is 'Input rows that were set aside, each with its reason; the rest was ranked.';
comment on column quarantine.run_id is 'Run';
comment on column quarantine.source is 'Input that the row belongs to: queries, candidates';
comment on column quarantine.query_id is 'Query; null where the row had none';
comment on column quarantine.doc_id is 'Document; null for a query''s row, or where the row had none';
comment on column quarantine.reason is 'null query_id, null doc_id, query not found, document not found, null or empty query text, query text is not UTF-8, query too long, null or empty document text, document text or title is not UTF-8, no candidates, engine died';
comment on column quarantine.detail is 'Numbers, where there are some; never a text from the input';
