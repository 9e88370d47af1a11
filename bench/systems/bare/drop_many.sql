delete from bare.@queue@ where id = any (:ids::bigint[]);
