-- A night's input in a scratch database, from top to bottom in the order in which tasks/inputs runs it:
--   1. rows as they came: create_rows to insert_nested_candidates; the flat layouts, or the nested one
--   2. matched and ordered: queries and documents are numbered, what matches nothing is set aside, each list is put into
--      first-stage order and cut: find_other_chunks (nested layout only) to note_repairs
--   3. what is ranked: keep_needed_documents to list_quarantine; texts are read between list_document_rows and
--      quarantine_documents
-- Statements that only look (find, count) can end the night with an InputError. The last of the file is asked only
-- where the memory was not enough.

-- name: create_rows
-- The input as it came: one row a row, ids as text. Emptied into clean tables by the statements below.
create table query_rows (
    query_id varchar,
    text varchar,
    is_undecodable boolean, -- not UTF-8: the text is null
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

-- name: add_field_columns
-- Room for what stands beside passages, of a night that has fields: the texts of all fields in their order, null for those
-- that the other input has.
alter table candidate_rows add column fields varchar[];

create table candidate_fields (
    query_index integer,
    doc_order integer,
    fields varchar[]
);

create table document_fields (
    doc_index integer,
    fields varchar[]
);

-- name: find_query_clashes
-- One id, several texts. query_id | num_rows: rows with it | num_texts: different texts, null counted as one
select
    query_id,
    count(*) as num_rows,
    count(distinct text) + max(case when text is null then 1 else 0 end) as num_texts
from query_rows
group by query_id
having num_texts > 1
order by query_id;

-- name: insert_candidate_rows
-- Adds one Arrow batch of flat candidates.
insert into candidate_rows by name
select *, doc_id as doc_key from rows;

-- name: insert_document_rows
-- Adds one Arrow batch of flat documents; for a sample only those that its candidates name.
insert into document_rows by name
select row_no, doc_id, doc_key
from rows
where not $only_named or doc_key in (select doc_key from candidate_rows);

-- name: find_repeated_documents
-- Every row of a doc_id that comes more than once. row_no | doc_id
select row_no, doc_id
from document_rows
where doc_id in (select doc_id from document_rows group by doc_id having count(*) > 1);

-- name: insert_nested_documents
-- Adds the documents inside one Arrow batch of unrolled nested rows.
insert into document_rows by name
select row_no, doc_id, doc_id || chr(31) || hash(text) as doc_key
from rows
where doc_id is not null;

-- name: insert_nested_candidates
-- Adds one Arrow batch of unrolled nested candidates.
insert into candidate_rows by name
select * exclude (text, is_undecodable, row_no), doc_id || chr(31) || hash(text) as doc_key
from rows;

-- name: find_other_chunks
-- Nested layout: candidates whose document is in the same list with another text at a better place. row_no
-- $order_by_score, $direction: as in order_candidates
create table other_chunks as
with repeated as (
    select query_id, doc_id
    from candidate_rows
    where doc_id is not null
    group by query_id, doc_id
    having min(doc_key) != max(doc_key)
)

select candidates.rowid as row_no
from candidate_rows as candidates
join repeated using (query_id, doc_id)
qualify
    candidates.doc_key != first_value(candidates.doc_key) over (
        partition by candidates.query_id, candidates.doc_id
        order by
            case when not $order_by_score then candidates.given_rank end,
            candidates.given_score * $direction desc nulls last,
            candidates.doc_key
    );

-- name: drop_other_chunks
-- Of a document with several texts in one list the best placed is ranked; the others are counted.
insert into notes
select 'candidates of a document that is in the list with another text', count(*)
from other_chunks
having count(*) > 0;

delete from candidate_rows where rowid in (select row_no from other_chunks);

-- name: number_queries
-- Queries in their fixed order, by id: query_index counts from 0 whatever the order of files and rows.
-- reason: why the query cannot be ranked, else null.
create table queries as
with distinct_queries as (
    select query_id, any_value(text) as text, bool_or(is_undecodable) as is_undecodable, max(num_tokens) as num_tokens
    from query_rows
    group by query_id
)
select
    (row_number() over (order by query_id) - 1)::integer as query_index,
    query_id,
    text,
    num_tokens,
    case
        when is_undecodable then 'query text is not UTF-8'
        when text is null then 'null query text'
        when num_tokens = 0 then 'empty query text'
        when num_tokens > $max_query_tokens then 'query too long'
    end as reason
from distinct_queries
qualify $limit_queries is null or query_index < $limit_queries;

-- name: number_documents
-- The documents that any candidate names, at their first row. doc_order: order by id, to break ties with an integer.
create table named_documents as
with named as (
    select doc_key, any_value(doc_id) as doc_id, min(row_no) as row_no
    from document_rows
    semi join candidate_rows using (doc_key)
    group by doc_key
)
select doc_key, doc_id, row_no, row_number() over (order by doc_key)::integer as doc_order
from named;

-- name: count_unmatched_queries
-- Candidates whose query_id is in no query. num_rows: with a query_id | num_unmatched | missing, there: three ids of each
with matched as (
    select candidates.query_id, known.query_id is null as is_missing
    from candidate_rows as candidates
    left join (select distinct query_id from query_rows) as known using (query_id)
    where candidates.query_id is not null
)

select
    (select count(*) from matched) as num_rows,
    (select count(*) from matched where is_missing) as num_unmatched,
    (select string_agg(id, ', ') from (select distinct query_id as id from matched where is_missing order by id limit 3))
        as missing,
    (select string_agg(id, ', ') from (select distinct query_id as id from query_rows order by id limit 3)) as there;

-- name: count_unmatched_queries_near
-- Ids of candidates that are in no queries but for how they are written. by_normalization (NFC, NFD) | by_white_space | by_case
with missing as (
    select distinct candidates.query_id as id
    from candidate_rows as candidates
    anti join query_rows using (query_id)
    where candidates.query_id is not null
),

there as (select distinct query_id as id from query_rows)

select
    (select count(*) from missing where nfc_normalize(id) in (select nfc_normalize(id) from there)) as by_normalization,
    (select count(*) from missing where trim(id) in (select trim(id) from there)) as by_white_space,
    (select count(*) from missing where lower(id) in (select lower(id) from there)) as by_case;

-- name: count_unmatched_documents
-- Candidates whose doc_id is in no document. num_rows: with a doc_id | num_unmatched | missing, there: three ids of each
with matched as (
    select candidates.doc_id, known.doc_key is null as is_missing
    from candidate_rows as candidates
    left join named_documents as known using (doc_key)
    where candidates.doc_id is not null
)

select
    (select count(*) from matched) as num_rows,
    (select count(*) from matched where is_missing) as num_unmatched,
    (select string_agg(id, ', ') from (select distinct doc_id as id from matched where is_missing order by id limit 3))
        as missing,
    (select string_agg(id, ', ') from (select distinct doc_id as id from document_rows order by id limit 3)) as there;

-- name: count_unmatched_documents_near
-- Ids of candidates that are in no documents but for how they are written. by_normalization (NFC, NFD) | by_white_space | by_case
with missing as (
    select distinct candidates.doc_id as id
    from candidate_rows as candidates
    anti join document_rows using (doc_id)
    where candidates.doc_id is not null
),

there as (select distinct doc_id as id from document_rows)

select
    (select count(*) from missing where nfc_normalize(id) in (select nfc_normalize(id) from there)) as by_normalization,
    (select count(*) from missing where trim(id) in (select trim(id) from there)) as by_white_space,
    (select count(*) from missing where lower(id) in (select lower(id) from there)) as by_case;

-- name: count_ordered_rows
-- Candidates that the first stage put anywhere. num_rows | num_ordered: with a rank or a score, or a score where that orders
select
    count(*) as num_rows,
    count(case when $order_by_score then given_score else coalesce(given_rank, given_score) end) as num_ordered
from candidate_rows;

-- name: quarantine_queries
-- Sets aside the queries that cannot be ranked.
insert into quarantine by name
select
    'queries' as source,
    query_id,
    null as doc_id,
    reason,
    case
        when reason = 'query too long'
            then num_tokens || ' tokens, max_query_tokens = ' || $max_query_tokens::integer
    end as detail
from queries
where reason is not null;

-- name: quarantine_candidates
-- Sets aside candidate rows without id, query or document, and those of a query that was set aside.
-- Rows of queries beyond limit_queries are not part of the run: neither ranked nor set aside.
insert into quarantine by name
select
    'candidates' as source,
    candidates.query_id,
    candidates.doc_id,
    case
        when candidates.query_id is null then 'null query_id'
        when candidates.doc_id is null then 'null doc_id'
        when known.query_id is null then 'query not found'
        when queries.reason is not null then queries.reason
        else 'document not found'
    end as reason,
    case
        when queries.reason = 'query too long'
            then queries.num_tokens || ' tokens, max_query_tokens = ' || $max_query_tokens::integer
    end as detail
from candidate_rows as candidates
left join (select distinct query_id from query_rows) as known using (query_id)
left join queries using (query_id)
left join named_documents using (doc_key)
where
    candidates.query_id is null
    or candidates.doc_id is null
    or known.query_id is null
    or queries.reason is not null
    or (queries.query_id is not null and named_documents.doc_key is null);

-- name: order_candidates
-- Each list once, in first-stage order, cut at top_k. place: from 1, before documents without text leave.
-- Rank first where all of a list's ranks are there, then score, then doc_id; equal pairs keep their best place.
-- $order_by_score: never by rank | $direction: 1 where a higher score is better, else -1
-- contradicts: of a list in rank order, whether the score is better than that of the place before; null: no score
create table ordered as
with matched as (
    select queries.query_index, documents.doc_order, candidates.given_rank, candidates.given_score
    from candidate_rows as candidates
    join queries using (query_id)
    join named_documents as documents using (doc_key)
    where queries.reason is null and candidates.doc_id is not null
),

deduplicated as (
    select
        query_index,
        doc_order,
        arg_min(given_score, coalesce(given_rank, 9223372036854775807)) as score_at_best_rank,
        max(given_score * $direction) * $direction as best_score,
        min(given_rank) as given_rank,
        bool_or(given_rank is null) as has_null_rank,
        count(*)::integer as num_rows
    from matched
    group by query_index, doc_order
),

flagged as (
    select
        query_index,
        doc_order,
        given_rank,
        case when $order_by_score then best_score else coalesce(score_at_best_rank, best_score) end as given_score,
        num_rows,
        $order_by_score or bool_or(has_null_rank) over (partition by query_index) as by_score
    from deduplicated
)

select
    query_index,
    doc_order,
    given_score,
    given_rank,
    by_score,
    num_rows,
    case when not by_score then given_score * $direction > lag(given_score * $direction) over list end as contradicts,
    (row_number() over list)::integer as place
from flagged
window list as (
    partition by query_index
    order by case when not by_score then given_rank end, given_score * $direction desc nulls last, doc_order
)
qualify $top_k is null or place <= $top_k;

-- name: find_longest_list
-- The longest list, before documents without text leave; no row where there is none. query_id | num_candidates
select queries.query_id, longest.num_candidates
from (select arg_max(query_index, place) as query_index, max(place) as num_candidates from ordered) as longest
join queries using (query_index);

-- name: note_repairs
-- What was done to the input without setting rows aside, counted for the run's record.
insert into notes
select note, num_rows
from (
    select 'duplicate queries' as note, count(*) - count(distinct query_id) as num_rows from query_rows
    union all
    select 'duplicate documents', count(*) - count(distinct doc_key) from document_rows where doc_key = doc_id
    union all
    select 'duplicate candidates', sum(num_rows - 1)::bigint from ordered
    union all
    select 'lists ordered by score, a rank was null', count(distinct query_index) from ordered
    where by_score and $has_rank
    union all
    select 'candidates with a tied rank', count(*) from (
        select 1 from ordered where not by_score
        qualify count(*) over (partition by query_index, given_rank) > 1
    )
    union all
    select 'candidates scored better than the one ranked before', count(*) from ordered where contradicts
    union all
    select 'candidates without a score', count(*) from ordered where given_score is null
)
where num_rows > 0;

-- name: count_contradictions
-- Where the score says another order than the rank. num_places: behind a first, both with a score | num_contradictions
select count(contradicts) as num_places, count(*) filter (where contradicts) as num_contradictions
from ordered;

-- name: keep_needed_documents
-- The documents that a list holds after the cut, numbered in input order: doc_index counts from 0.
create table documents as
select
    (row_number() over (order by named.row_no) - 1)::integer as doc_index,
    named.doc_order,
    named.doc_id,
    named.row_no
from named_documents as named
semi join ordered using (doc_order);

-- name: list_document_rows
-- Where the needed documents lie in the input. row_no
select row_no from documents order by doc_index;

-- name: quarantine_documents
-- Takes documents without text out of the lists, and sets their candidate rows aside.
create table bad_documents as
select documents.doc_order, documents.doc_id, bad.reason
from bad
join documents using (doc_index);

insert into quarantine by name
select 'candidates' as source, queries.query_id, bad_documents.doc_id, bad_documents.reason, null as detail
from ordered
join bad_documents using (doc_order)
join queries using (query_index);

-- name: stage_queries
-- Every query of the run. num_candidates: rows that can be ranked | status: ready, no_candidates, quarantined
create table staged_queries as
with lists as (
    select query_index, count(*)::integer as num_candidates
    from ordered
    anti join bad_documents using (doc_order)
    group by query_index
)
select
    queries.query_index,
    queries.query_id,
    queries.text,
    coalesce(lists.num_candidates, 0) as num_candidates,
    case
        when queries.reason is not null then 'quarantined'
        when lists.num_candidates is null then 'no_candidates'
        else 'ready'
    end as status
from queries
left join lists using (query_index);

-- name: list_candidates
-- The staged candidates, query by query, best first. doc_index | first_stage_score (NaN: none)
select documents.doc_index, coalesce(ordered.given_score, 'nan'::double) as first_stage_score
from ordered
join documents using (doc_order)
anti join bad_documents using (doc_order)
order by ordered.query_index, ordered.place;

-- name: choose_candidate_fields
-- The fields of each listed candidate: of its best placed row.
-- $order_by_score, $direction: as in order_candidates
insert into candidate_fields
select queries.query_index, documents.doc_order, candidates.fields
from candidate_rows as candidates
join queries using (query_id)
join named_documents as documents using (doc_key)
semi join ordered on ordered.query_index = queries.query_index and ordered.doc_order = documents.doc_order
qualify
    row_number() over (
        partition by queries.query_index, documents.doc_order
        order by
            case when not $order_by_score then candidates.given_rank end nulls last,
            candidates.given_score * $direction desc nulls last,
            candidates.fields
    ) = 1;

-- name: list_candidate_fields
-- Of the staged candidates in the order of list_candidates. of_candidate | of_document: see add_field_columns, or null
select candidate_fields.fields as of_candidate, document_fields.fields as of_document
from ordered
join documents using (doc_order)
anti join bad_documents using (doc_order)
left join candidate_fields on
    candidate_fields.query_index = ordered.query_index and candidate_fields.doc_order = ordered.doc_order
left join document_fields on document_fields.doc_index = documents.doc_index
order by ordered.query_index, ordered.place;

-- name: list_queries
-- The staged queries in order. query_id | text | num_candidates | status
select query_id, text, num_candidates, status from staged_queries order by query_index;

-- name: list_notes
-- Repairs made. note | num_rows
select note, num_rows from notes order by note;

-- name: list_documents
-- The needed documents. doc_id
select doc_id from documents order by doc_index;

-- name: list_quarantine
-- Everything set aside, and the queries that are left without a candidate.
select source, query_id, doc_id, reason, detail
from quarantine
union all
select 'queries', query_id, null, 'no candidates', null
from staged_queries
where status = 'no_candidates'
order by source, query_id, doc_id;

-- name: find_longest_repetition
-- The pair of query and document that comes most often, if more often than a list may be long. query_id | doc_id | num_rows
select query_id, doc_id, count(*) as num_rows
from candidate_rows
group by query_id, doc_id
having count(*) > $max_candidates
order by num_rows desc
limit 1;
