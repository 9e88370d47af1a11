-- As examples/worker.sql.
set fetchq.worker = 'bench';
call fetchq.work('jobs', 'job');
