delete from bare.@queue@ where id = :id;
