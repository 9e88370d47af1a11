//! The bounds of what a caller can pass in one call. Without them, one call could take all memory.

use crate::invalid::Invalid;

/// The largest number of elements of a list that a caller passes.
pub const MAX_LIST: usize = 1_000_000;

/// The largest size of a filter, of settings, and of other JSON that describes a call, in bytes.
pub const MAX_JSON: usize = 10_000_000;

/// Fails with `Invalid::LongList` for a list that is too long.
pub fn check(list: &'static str, got: usize) -> Result<(), Invalid> {
    if got > MAX_LIST {
        return Err(Invalid::LongList {
            list,
            got,
            max: MAX_LIST,
        });
    }
    Ok(())
}

/// Fails with `Invalid::LongJson` for a JSON text that is too long.
pub fn check_json(argument: &'static str, got: usize) -> Result<(), Invalid> {
    if got > MAX_JSON {
        return Err(Invalid::LongJson {
            argument,
            got,
            max: MAX_JSON,
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_a_million_elements_at_most() {
        assert_eq!(check("subjects", MAX_LIST), Ok(()));
        let error = check("subjects", MAX_LIST + 1).unwrap_err();
        assert_eq!(
            error.to_string(),
            "\"subjects\" exceeds the limit of 1000000 elements: it has 1000001"
        );
    }
}
