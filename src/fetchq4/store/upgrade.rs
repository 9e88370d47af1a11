//! The upgrade of a catalog by a script of the extension.

use crate::error::{Error, Result};
use crate::pg::extension_script;
use crate::pg::spi;

/// Runs statements of an update script that make objects of users.
///
/// Fails with `Error::NoUpdate` when no script runs.
pub fn run_outside_extension(sql: &str) -> Result<()> {
    if !extension_script::is_running() {
        return Err(Error::NoUpdate);
    }
    extension_script::outside(|| {
        spi::connect(|spi| {
            spi.once_as_caller(sql, &[]);
        });
    });
    Ok(())
}
