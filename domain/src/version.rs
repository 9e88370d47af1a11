//! Versions of fetchq, of the form `5.0.1`.

/// The version of this library.
pub const LIBRARY: &str = env!("CARGO_PKG_VERSION");

/// The versions of the catalog that this library works with: its own. A release whose catalog differs
/// from the one before in nothing that the library reads can name both here, so that it works before
/// `alter extension fetchq update` has run.
const SERVED: &[&str] = &[LIBRARY];

/// Returns whether this library works with a catalog of this version.
pub fn is_served(catalog: &str) -> bool {
    SERVED.contains(&catalog)
}

/// Returns whether this library is newer than a catalog. A version that is not of the known form is
/// older than all others.
pub fn is_newer_than(catalog: &str) -> bool {
    parts(LIBRARY) > parts(catalog)
}

fn parts(version: &str) -> Option<Vec<u32>> {
    version.split('.').map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        assert!(parts("5.0.10") > parts("5.0.9"));
        assert!(parts("5.1") > parts("5.0.9"));
        assert!(parts("10.0.0") > parts("9.9.9"));
        assert!(parts("0.0.1") > parts("unknown"));
    }

    #[test]
    fn a_library_serves_its_own_catalog() {
        assert!(is_served(LIBRARY) && !is_newer_than(LIBRARY));
        assert!(!is_served("4.0.2") && is_newer_than("4.0.2"));
        assert!(!is_served("999.0.0") && !is_newer_than("999.0.0"));
    }
}
