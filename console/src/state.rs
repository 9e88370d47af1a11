//! What all requests share.
use std::sync::Arc;

use tokio::sync::watch;

use crate::db::Databases;
use crate::limits::{Client, Places};
use crate::poller::Live;
use crate::security::Security;

/// The state of the process. Handlers get it as `State<App>`.
pub type App = Arc<AppState>;

pub struct AppState {
    pub databases: Arc<Databases>,
    /// The numbers of each database, in the order of the databases.
    pub live: Vec<Arc<Live>>,
    pub security: Security,
    /// The pages that listen to events.
    pub streams: Arc<Places<Client>>,
    /// Turns true when the process is asked to stop; then events end.
    pub stopping: watch::Sender<bool>,
    /// Whether anything can be changed (`--allow-actions`).
    pub allow_actions: bool,
    /// Whether payloads are shown to nobody (`--hide-payloads`).
    pub hide_payloads: bool,
}
