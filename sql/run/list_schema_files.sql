-- Applied schema files. file_name
select file_name from schema_files order by file_name;
