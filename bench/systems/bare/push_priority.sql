\set priority random(0, 7)
insert into bare.@queue@ (priority, payload) values (:priority, '@payload@');
