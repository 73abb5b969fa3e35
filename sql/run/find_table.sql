-- Whether the database has a table or view. table_name
select table_name from information_schema.tables where table_name = $name;
