//! The settings of a background process: those of the server, and never those of a database or a
//! role.
//!
//! A process that connects to a database takes what ALTER DATABASE and ALTER ROLE have set for its
//! sessions: a role, an isolation level, timeouts, planner settings. Those are meant for the
//! sessions of clients, and any of them can keep maintenance from running. The server has no way
//! to connect without them, so the settings from before the connection are put back.

use std::collections::HashMap;
use std::ffi::{CStr, CString};

use pgrx::pg_sys;

/// Settings that a background process needs, whatever the configuration of the server says.
const REQUIRED: &[(&CStr, &CStr)] = &[
    // The functions of maintenance have the same search path. A superuser must not use operators
    // that another user has created.
    (c"search_path", c"pg_catalog, pg_temp"),
    // No client relies on a commit of this process. What a crash loses is done again.
    (c"synchronous_commit", c"off"),
    (c"default_transaction_read_only", c"off"),
    (c"default_transaction_isolation", c"read committed"),
    (c"default_transaction_deferrable", c"off"),
    // Each service bounds its own waits. These limits would end it at an arbitrary point.
    (c"statement_timeout", c"0"),
    (c"lock_timeout", c"0"),
    (c"idle_in_transaction_session_timeout", c"0"),
    #[cfg(not(feature = "pg13"))]
    (c"idle_session_timeout", c"0"),
    #[cfg(any(feature = "pg17", feature = "pg18"))]
    (c"transaction_timeout", c"0"),
    // Triggers of the queues must run, and policies must apply to the owner where they are forced.
    (c"session_replication_role", c"origin"),
    (c"row_security", c"on"),
];

/// The settings of this process by name, as they are before it connects to a database: those of
/// the configuration files and of the command line.
pub(super) struct ServerSettings(HashMap<CString, CString>);

/// Returns the settings that exist in this process.
fn variables() -> &'static [*mut pg_sys::config_generic] {
    // SAFETY: The function returns an array of pointers that live as long as the process. The
    // array itself is not changed before the next setting is defined, or is a copy in the current
    // memory context.
    unsafe {
        #[cfg(any(feature = "pg13", feature = "pg14", feature = "pg15"))]
        let (all, count) = (pg_sys::get_guc_variables(), pg_sys::GetNumConfigOptions());
        #[cfg(not(any(feature = "pg13", feature = "pg14", feature = "pg15")))]
        let (all, count) = {
            let mut count = 0;
            (pg_sys::get_guc_variables(&mut count), count)
        };
        std::slice::from_raw_parts(all, count.unsigned_abs() as usize)
    }
}

/// Returns whether a setting has the value that ALTER DATABASE or ALTER ROLE gave it.
fn is_of_database_or_role(source: pg_sys::GucSource::Type) -> bool {
    use pg_sys::GucSource::{PGC_S_DATABASE_USER, PGC_S_GLOBAL};
    (PGC_S_GLOBAL..=PGC_S_DATABASE_USER).contains(&source)
}

fn set(name: &CStr, value: &CStr) {
    // SAFETY: The context is that of the server itself, so every setting that a database or a role
    // can have may be changed. The source is above those of a database and of a role.
    unsafe {
        pg_sys::SetConfigOption(
            name.as_ptr(),
            value.as_ptr(),
            pg_sys::GucContext::PGC_POSTMASTER,
            pg_sys::GucSource::PGC_S_OVERRIDE,
        );
    }
}

impl ServerSettings {
    /// Reads the settings. Must be called before the process connects to a database.
    pub(super) fn read() -> Self {
        let mut settings = HashMap::new();
        for variable in variables() {
            // SAFETY: The name of a setting is a C string. The value is NULL or a C string in a
            // static buffer or in the memory of the setting, and is copied.
            unsafe {
                let name = CStr::from_ptr((**variable).name);
                let value = pg_sys::GetConfigOption(name.as_ptr(), true, false);
                if !value.is_null() {
                    settings.insert(name.to_owned(), CStr::from_ptr(value).to_owned());
                }
            }
        }
        Self(settings)
    }

    /// Puts back what the database and the role have changed, and sets what every background
    /// process needs. Must be called after the process has connected, outside of a transaction.
    /// `name` becomes its `application_name`.
    pub(super) fn apply(self, name: &CStr) {
        let changed = variables().iter().filter_map(|variable| {
            // SAFETY: The setting lives as long as the process, and its name is a C string.
            let variable = unsafe { &**variable };
            is_of_database_or_role(variable.source)
                .then(|| unsafe { CStr::from_ptr(variable.name) }.to_owned())
        });
        for changed in changed.collect::<Vec<_>>() {
            match changed.to_bytes() {
                // The process was connected as this superuser. The name is looked up in the
                // catalog, which takes a transaction.
                b"session_authorization" => {
                    // SAFETY: The process is not in a transaction. The role exists always, and
                    // the result is a C string of the transaction.
                    unsafe {
                        pg_sys::StartTransactionCommand();
                        let superuser = pg_sys::Oid::from(pg_sys::BOOTSTRAP_SUPERUSERID);
                        let superuser = pg_sys::GetUserNameFromId(superuser, false);
                        set(&changed, CStr::from_ptr(superuser));
                        pg_sys::CommitTransactionCommand();
                    }
                }
                // Connecting to the database has set it.
                b"client_encoding" => {
                    // SAFETY: The process has connected to a database.
                    let encoding = unsafe { CStr::from_ptr(pg_sys::GetDatabaseEncodingName()) };
                    set(&changed, encoding);
                }
                // Settings that did not exist before belong to nobody, or to other libraries.
                _ => {
                    if let Some(value) = self.0.get(&changed) {
                        set(&changed, value);
                    }
                }
            }
        }
        set(c"application_name", name);
        for (setting, value) in REQUIRED {
            set(setting, value);
        }
    }
}
