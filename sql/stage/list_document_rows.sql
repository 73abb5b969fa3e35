-- Where the needed documents lie in the input. row_no
select row_no from documents order by doc_index;
