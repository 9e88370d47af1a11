select status, count(*) from bare.@queue@ group by status;
