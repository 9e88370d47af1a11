-- Without a server-side function these are two statements.
update bare.@queue@ set status = 2, attempts = attempts + 1, next_iteration = now() + interval '5m' where ctid = any (array(select ctid from bare.@queue@ where status = 1 and next_iteration <= now() order by next_iteration, id limit 1 for update skip locked)) returning id, payload \gset
delete from bare.@queue@ where id = :id;
