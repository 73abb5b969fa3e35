-- One id, several texts. query_id | num_rows: rows with it | num_texts: different texts, null counted as one
select
    query_id,
    count(*) as num_rows,
    count(distinct text) + max(case when text is null then 1 else 0 end) as num_texts
from query_rows
group by query_id
having num_texts > 1
order by query_id;
