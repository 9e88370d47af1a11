-- What each counter event adds to which metrics. This is the only place that says it: the library reads
-- these rows when it is compiled (domain/src/counter_events.rs). Numbers of events never change.

insert into fetchq.counter_events (event, name, metric, sign)
select e.event, e.name, pg_catalog.substr(d.delta, 2), case when pg_catalog.substr(d.delta, 1, 1) = '+' then 1 else -1 end
from (values
    (1::smallint, 'push pending',       '+ent +cnt +v +pnd'),
    (2,           'push planned',       '+ent +cnt +v +pln'),
    (3,           'pick',               '+pkd +act -pnd'),
    (4,           'complete',           '+prc +suc +cpl -act'),
    (5,           'kill',               '+prc +fai +kll -act'),
    (6,           'reschedule pending', '+prc +suc +res -act +pnd'),
    (7,           'reschedule planned', '+prc +suc +res -act +pln'),
    (8,           'reject pending',     '+prc +fai +err +rej -act +pnd'),
    (9,           'reject killed',      '+prc +fai +err +rej -act +kll'),
    (10,          'drop',               '+prc +suc +drp -act -cnt -v'),
    (11,          'make pending',       '+pnd -pln'),
    (12,          'orphan',             '+err +orp +pnd -act'),
    (13,          'dead',               '+err +orp +kll -act'),
    (14,          'upsert to planned',  '+pln -pnd'),
    (15,          'upsert to pending',  '+pnd -pln'),
    (16,          'return pending',     '+pnd -act'),
    (17,          'return planned',     '+pln -act'),
    (18,          'pop',                '+pkd +prc +suc +drp -pnd -cnt -v'),
    (19,          'cancel planned',     '+can +kll -pln'),
    (20,          'cancel pending',     '+can +kll -pnd'),
    (21,          'cancel active',      '+can +kll -act'),
    (22,          'revive killed',      '+rev +pnd -kll'),
    (23,          'revive completed',   '+rev +pnd -cpl'),
    (24,          'replan killed',      '+rev +pln -kll'),
    (25,          'replan completed',   '+rev +pln -cpl'),
    (26,          'remove planned',     '+drp -pln -cnt -v'),
    (27,          'remove pending',     '+drp -pnd -cnt -v'),
    (28,          'remove completed',   '+drp -cpl -cnt -v'),
    (29,          'remove killed',      '+drp -kll -cnt -v'),
    (30,          'reject removed',     '+prc +fai +err +rej +drp -act -cnt -v'),
    (31,          'dead removed',       '+err +orp +drp -act -cnt -v'),
    (32,          'dead letter',        '+ded'),
    (33,          'remove active',      '+drp -act -cnt -v'),
    (34,          'place killed',       '+ent +cnt +v +kll'),
    (35,          'place completed',    '+ent +cnt +v +cpl'),
    (36,          'kill removed',       '+prc +fai +drp -act -cnt -v'),
    (37,          'reject planned',     '+prc +fai +err +rej -act +pln'),
    (38,          'expire planned',     '+exp +kll -pln'),
    (39,          'expire pending',     '+exp +kll -pnd')
) as e (event, name, deltas)
cross join lateral pg_catalog.regexp_split_to_table(e.deltas, ' ') as d (delta);

-- A document that is settled before its lease was written: its pick is counted in the same row. The number
-- is greater by `LATE`.
insert into fetchq.counter_events (event, name, metric, sign)
select e.event + 64, 'pick, ' || e.name, d.metric, pg_catalog.sum(d.sign)
from (select distinct a.event, a.name from fetchq.counter_events a where a.metric = 'act' and a.sign = -1) e
cross join lateral (
    select p.metric, p.sign from fetchq.counter_events p where p.name = 'pick'
    union all
    select s.metric, s.sign from fetchq.counter_events s where s.event = e.event
) d
group by e.event, e.name, d.metric
having pg_catalog.sum(d.sign) <> 0;
