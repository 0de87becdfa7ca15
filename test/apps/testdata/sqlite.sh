#!/bin/sh
# sqlite3 in the directory $1, with a rollback journal in all its modes.
set -eu
cd "$1"
for mode in delete truncate persist memory off; do
	echo "-- $mode"
	sqlite3 "$mode.db" <<-END
		pragma journal_mode = $mode;
		create table t (i integer primary key, x text);
		begin;
		with recursive n (i) as (select 1 union all select i + 1 from n where i < 5000)
			insert into t select i, 'row ' || i from n;
		commit;
		begin; delete from t where i % 2; rollback;
		select count(*), sum(i) from t;
		begin; update t set x = x || '!' where i % 7 = 0; commit;
		create index x on t (x);
		select i from t where x = 'row 4998!';
		delete from t where i > 2500;
		vacuum;
		pragma integrity_check;
	END
	sqlite3 "$mode.db" 'select count(*), max(x) from t'
done
ls
echo "-- backup, dump, attach"
sqlite3 delete.db '.backup copy.db' '.dump' | wc -l
sqlite3 copy.db "attach 'truncate.db' as b; select count(*) from t join b.t using (i);"
echo "-- synchronous"
sqlite3 copy.db 'pragma synchronous = extra; insert into t values (9999, 1); select max(i) from t'
echo "-- sorting in files"
sqlite3 copy.db 'pragma temp_store = file; pragma cache_size = 10; select count(*) from (select distinct x || i from t order by 1 desc)'
