//! What all requests share.
use std::sync::Arc;

use crate::db::Databases;

/// The state of the process. Handlers get it as `State<App>`.
pub type App = Arc<AppState>;

pub struct AppState {
    pub databases: Databases,
    /// Whether anything can be changed (`--allow-actions`).
    pub allow_actions: bool,
    /// Whether payloads are shown to nobody (`--hide-payloads`).
    pub hide_payloads: bool,
}
