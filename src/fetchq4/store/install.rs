//! Removing fetchq (`destroy_with_terrible_consequences`).

use crate::pg::spi;

const DESTROY: &str = "drop extension fetchq cascade";

/// Drops the extension, and every queue with it.
pub fn destroy() {
    spi::connect(|spi| {
        spi.once(DESTROY, &[]);
    });
}
