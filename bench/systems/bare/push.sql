insert into bare.@queue@ (payload) values ('@payload@');
