//! Whether this library fits the catalog, the objects that the extension has in this database.
//!
//! The files of the library are replaced at another moment than `alter extension fetchq update` runs,
//! and a session keeps the library that it has loaded. Code that expects other tables than there are
//! could write something wrong, so every call asks here first.

use pgrx::pg_sys;

use crate::domain::version;
use crate::error::{Error, Result};
use crate::pg::{catalog, invalidation, relation};

/// Fails with `Error::OtherVersion` when the library does not fit the catalog.
///
/// The answer is remembered until the definition of the table `fetchq.queues` changes, so that a call
/// reads one variable. Each upgrade script calls [`announce_change`].
pub fn require_fit() -> Result<()> {
    match invalidation::knows_registry() {
        true => Ok(()),
        false => look_up(),
    }
}

/// Returns the version of the catalog when the library does not fit it.
pub fn unfit_catalog() -> Option<String> {
    match require_fit() {
        Err(Error::OtherVersion { catalog, .. }) => Some(catalog),
        _ => None,
    }
}

/// Has all sessions look at the version again when this transaction commits.
pub fn announce_change() {
    if let Some(registry) = relation::lookup("fetchq", "queues") {
        relation::invalidate(registry);
    }
}

fn look_up() -> Result<()> {
    // An upgrade in several steps runs scripts of versions before that of the library.
    // SAFETY: This is a plain variable of this process.
    if unsafe { pg_sys::creating_extension } {
        return Ok(());
    }
    // First: a change that comes during the look-up is noticed.
    if let Some(registry) = relation::lookup("fetchq", "queues") {
        invalidation::know_registry(registry);
    }
    match catalog::extension_version() {
        Some(catalog) if !version::is_served(&catalog) => {
            invalidation::forget_registry();
            Err(Error::OtherVersion {
                library: version::LIBRARY,
                catalog,
            })
        }
        _ => Ok(()),
    }
}
