update bare.@queue@ set status = 1, next_iteration = now() where id = :id;
