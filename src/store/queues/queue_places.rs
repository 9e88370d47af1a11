//! Queues that live on another server, and the error of a call that names a queue which is not in
//! this database.
//!
//! The table is read only where such an error is due, so a queue that is here costs nothing.

use pgrx::pg_sys::Oid;

use crate::domain::names::QueueName;
use crate::error::{Error, Result, UnknownName};
use crate::pg::spi;
use crate::pg::value::Arg;
use crate::pg::{acl, relation, role, text};
use crate::store::queues::right::Right;

const GET: &str = "select place from fetchq.queue_places where queue {=} $1";

/// Where a queue lives that is not in this database. None: nothing is recorded.
fn place_of(name: &QueueName) -> Option<String> {
    // The call may have waited for the transaction that moved the queue away, and its own
    // transaction may have an older snapshot.
    spi::connect(|spi| {
        let rows = spi.once_latest(GET, &[Arg::from(name.as_str())]);
        (!rows.is_empty()).then(|| rows.get(0, 1)).flatten()
    })
}

/// The error for a queue that is not in this database: it lives on another server, or it does not
/// exist. Every `Error::UnknownQueue` is made here.
pub fn unknown(name: &QueueName) -> Error {
    match require_here(name) {
        Err(elsewhere) => elsewhere,
        Ok(()) => Error::UnknownQueue(UnknownName {
            name: name.to_string(),
            nearest: nearest(name),
        }),
    }
}

const GET_SIMILAR: &str = "select q.name::pg_catalog.text from fetchq.queues q
    where pg_catalog.abs(pg_catalog.length(q.name::pg_catalog.text) {-} $1) {<=} $2
    order by q.name";

/// The queue whose name is nearest to one that does not exist: a few letters differ. None:
/// none is near, or the caller has no right on it.
fn nearest(name: &QueueName) -> Option<String> {
    let length = i32::try_from(name.as_str().len()).unwrap_or(i32::MAX);
    // Two letters that are swapped count as two.
    let max = match length {
        ..=3 => 1,
        4..=11 => 2,
        _ => 3,
    };
    let similar: Vec<String> = spi::connect(|spi| {
        let rows = spi.once(GET_SIMILAR, &[Arg::from(length), Arg::from(max)]);
        (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect()
    });
    let near = similar.into_iter().filter_map(|similar| {
        let distance = text::distance(name.as_str(), &similar, max)?;
        let parsed = QueueName::parse(&similar).ok()?;
        let table = relation::lookup_data_table(&parsed.relation("docs"))?;
        Right::Any.is_held_on(table).then_some((distance, similar))
    });
    near.min_by_key(|(distance, _)| *distance)
        .map(|(_, similar)| similar)
}

/// Checks that a queue which is not in this database does not live on another server either.
///
/// Fails with `Error::QueueElsewhere`.
pub fn require_here(name: &QueueName) -> Result<()> {
    match place_of(name) {
        Some(place) => Err(Error::QueueElsewhere {
            queue: name.to_string(),
            place,
        }),
        None => Ok(()),
    }
}

/// Lets one session at a time decide where a queue lives, until its transaction ends: one that
/// creates the queue here, or one that records a place. Names with the same number wait for each
/// other too. Waits.
pub fn serialize(name: &QueueName) {
    if let Some(table) = relation::lookup("fetchq", "queue_places") {
        relation::serialize_name(table, name.as_str());
    }
}

const IS_HERE: &str = "select from fetchq.queues where name {=} $1";

const GET_MAKER: &str =
    "select made_by::pg_catalog.oid from fetchq.queue_places where queue {=} $1";

const SET: &str = "insert into fetchq.queue_places as p (queue, place, made_by)
    values ($1, $2, $3::pg_catalog.regrole)
    on conflict (queue) do update set place = excluded.place, since = pg_catalog.now()
    where p.place {<>} excluded.place";

const REMOVE: &str = "delete from fetchq.queue_places where queue {=} $1";

/// Checks that a caller may change what is recorded of a queue, if anything is. Returns whether
/// something is.
///
/// Fails with `Error::PlaceOfOther` unless the caller has the rights of the role that has recorded it,
/// or owns the extension.
fn may_change(name: &QueueName) -> Result<bool> {
    let maker: Option<Option<Oid>> = spi::connect(|spi| {
        let rows = spi.once_latest(GET_MAKER, &[Arg::from(name.as_str())]);
        (!rows.is_empty()).then(|| rows.get(0, 1))
    });
    let role = role::current();
    let is_maker = |maker| role::has_privileges_of(role, maker);
    match maker {
        Some(maker) if !maker.is_some_and(is_maker) && !acl::owns_extension() => {
            Err(Error::PlaceOfOther {
                role: role::name(role),
                queue: name.to_string(),
            })
        }
        found => Ok(found.is_some()),
    }
}

/// Records where a queue lives; `None` removes the record. Returns whether that changed anything.
///
/// Fails with `Error::QueueIsHere` for a place of a queue that is in this database, and with
/// `Error::PlaceOfOther`.
pub fn set(name: &QueueName, place: Option<&str>) -> Result<bool> {
    let key = Arg::from(name.as_str());
    let require_elsewhere = || match spi::connect(|spi| spi.once_latest(IS_HERE, &[key]).is_empty())
    {
        true => Ok(()),
        false => Err(Error::QueueIsHere(name.to_string())),
    };
    // A call that can change nothing holds up nobody who creates the queue.
    if !may_change(name)? && place.is_none() {
        return Ok(false);
    }
    if place.is_some() {
        require_elsewhere()?;
    }
    serialize(name);
    // Other sessions may have changed that meanwhile.
    may_change(name)?;
    let Some(place) = place else {
        return Ok(spi::connect(|spi| spi.once(REMOVE, &[key]).affected()) > 0);
    };
    require_elsewhere()?;
    let args = [key, Arg::from(place), Arg::oid(role::current())];
    Ok(spi::connect(|spi| spi.once(SET, &args).affected()) > 0)
}
