//! The control file of the cluster, which says how the server ended the last time, and the files that
//! say how it starts.

use std::ffi::{CStr, OsStr};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use pgrx::pg_sys;

/// Where `state` is in the file (`ControlFileData`), in every version since PostgreSQL 8.
const STATE: usize = 16;

/// The states of a server that was shut down: `DB_SHUTDOWNED` and `DB_SHUTDOWNED_IN_RECOVERY`.
const SHUT_DOWN: [u32; 2] = [1, 2];

/// Returns whether the server that starts at this moment was not shut down before: it crashed, or a
/// process of it did, or its files are a copy of a running server. A file that cannot be read counts as
/// a crash.
///
/// To be called in the postmaster when it makes the shared memory. Later the file says that the server
/// runs.
pub fn is_start_after_crash() -> bool {
    let mut head = [0; STATE + 4];
    let file = data_directory().join("global/pg_control");
    let read = File::open(file).and_then(|mut file| file.read_exact(&mut head));
    let state = [
        head[STATE],
        head[STATE + 1],
        head[STATE + 2],
        head[STATE + 3],
    ];
    read.is_err() || !SHUT_DOWN.contains(&u32::from_ne_bytes(state))
}

/// Returns whether the server that starts at this moment is a standby. It remains one until it is
/// promoted. To be called as [`is_start_after_crash`].
pub fn is_start_as_standby() -> bool {
    data_directory().join("standby.signal").exists()
}

fn data_directory() -> &'static Path {
    // SAFETY: The server has set its data directory, a C string that stays, before it loads libraries.
    let directory = unsafe { CStr::from_ptr(pg_sys::DataDir) };
    Path::new(OsStr::from_bytes(directory.to_bytes()))
}
