drop table if exists bare.@queue@;
