//! Modules of PostgreSQL's contrib, which an installation may lack.

use std::io::Write;
use std::panic::Location;
use std::path::Path;

use crate::{bin, run};

/// Whether a test has to end because the installation lacks a module of contrib. The file that
/// `FETCHQ_SKIPPED` names gets a line, which the suite shows, and it does not count the test as
/// passed.
#[track_caller]
pub fn skips_test(module: &str) -> bool {
    lacks("skipped", module, Location::caller())
}

/// Like [`skips_test`], for a part of a test. The suite shows it, and counts the test as passed.
#[track_caller]
pub fn leaves_out(module: &str) -> bool {
    lacks("in part", module, Location::caller())
}

fn lacks(what: &str, module: &str, at: &Location) -> bool {
    let printed = run(bin("pg_config").arg("--pkglibdir"));
    let folder = printed.trim();
    if Path::new(folder).join(format!("{module}.so")).exists() {
        return false;
    }
    let line = format!("{what}: {at} needs {module} of contrib, which {folder} lacks");
    println!("{line}");
    if let Ok(path) = std::env::var("FETCHQ_SKIPPED") {
        let mut file = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(&path)
            .expect("open the file of FETCHQ_SKIPPED");
        writeln!(file, "{line}").expect("write the file of FETCHQ_SKIPPED");
    }
    true
}
