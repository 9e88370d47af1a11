//! Which schedules a deployment declares, and whether they are as it declares them.

use crate::pg::relation;
use crate::pg::spi;
use crate::pg::value::Arg;
use crate::store::upkeep::schedules::NewSchedule;

// The texts of both, in the same style: intervals and numbers that are equal need not be the same.
const IS_SAME: &str = "select pg_catalog.jsonb_build_array(queue::pg_catalog.text, cron, every::pg_catalog.text, timezone,
            payload::pg_catalog.text, version, priority, catch_up, catch_up_limit, jitter::pg_catalog.text, starts_at,
            ends_at, made_by::pg_catalog.oid, headers::pg_catalog.text)::pg_catalog.text
        {=} pg_catalog.jsonb_build_array($2, $3, $4::pg_catalog.text, $5,
            $6::pg_catalog.text, $7, $8, $9, $10, $11::pg_catalog.text, $12,
            $13, $16, $17::pg_catalog.text)::pg_catalog.text
    from fetchq.schedules where name {=} $1";

/// Returns whether a schedule is as it is wanted, and made by the role that wants it.
pub fn is_same(wanted: &NewSchedule) -> bool {
    let args = wanted.args(0, 0);
    spi::connect(|spi| {
        let rows = spi.once(IS_SAME, &args);
        !rows.is_empty() && rows.get(0, 1).unwrap_or(false)
    })
}

/// Lets one transaction at a time decide which schedules an owner has. Waits.
pub fn serialize(owner: &str) {
    if let Some(table) = relation::lookup("fetchq", "schedules") {
        relation::serialize_name(table, owner);
    }
}

// Index: schedules_owner_idx.
const OF_OWNER: &str = "select name, queue::pg_catalog.text from fetchq.schedules
    where owner {=} $1 order by name collate pg_catalog.\"C\"";

/// The names of the schedules of an owner, in order, and their queues.
pub fn of_owner(owner: &str) -> Vec<(String, String)> {
    spi::connect(|spi| {
        let rows = spi.once(OF_OWNER, &[Arg::from(owner)]);
        (0..rows.len())
            .filter_map(|row| Some((rows.get(row, 1)?, rows.get(row, 2)?)))
            .collect()
    })
}

const GET_OWNER: &str = "select owner from fetchq.schedules where name {=} $1";

/// The owner of a schedule. None when nobody declares it.
pub fn owner_of(name: &str) -> Option<String> {
    spi::connect(|spi| {
        let rows = spi.once(GET_OWNER, &[Arg::from(name)]);
        (!rows.is_empty()).then(|| rows.get(0, 1)).flatten()
    })
}
