-- The input as it came: one row a row, ids as text. Emptied into clean tables by the other files of this folder.
create table query_rows (
    query_id varchar,
    text varchar,
    num_tokens integer -- of the query as it stands in a prompt
);

create table document_rows (
    row_no bigint, -- place in the input, files in path order
    doc_id varchar,
    doc_key varchar -- doc_id; in the nested layout doc_id and its text's hash, since each query brings its own text
);

create table candidate_rows (
    query_id varchar,
    doc_id varchar,
    doc_key varchar,
    given_rank bigint,
    given_score double
);

create table quarantine (
    source varchar, -- queries, candidates
    query_id varchar,
    doc_id varchar,
    reason varchar,
    detail varchar
);

create table notes (
    note varchar, -- what was done to the input without setting rows aside
    num_rows bigint
);
