//! Hashes that the server computes.

use std::fmt::Write;

use pgrx::{IntoDatum, pg_sys};

/// Returns the SHA-256 of texts, in hexadecimal digits. A byte that no text has separates them.
pub fn sha256(texts: &[&str]) -> String {
    let bytes = texts.join("\0").into_bytes();
    // SAFETY: sha256_bytea takes a bytea and returns one.
    let hash: Option<Vec<u8>> =
        unsafe { pgrx::direct_function_call(pg_sys::sha256_bytea, &[bytes.into_datum()]) };
    let hash = hash.unwrap_or_else(|| pgrx::error!("sha256_bytea returned NULL"));
    hash.iter().fold(String::new(), |mut text, byte| {
        // Writing into a String does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
