update bare.@queue@ set status = 3 where id = :id;
