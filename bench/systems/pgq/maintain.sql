-- every: 1 s
select pgq.ticker();
