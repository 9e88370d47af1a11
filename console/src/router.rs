//! Which address is answered by which handler.
use axum::Router;
use axum::routing::get;

use crate::metrics;
use crate::state::App;
use crate::web;

/// All pages of the process.
pub fn router(app: App) -> Router {
    Router::new()
        .route("/", get(web::home))
        .merge(metrics::routes())
        .with_state(app)
}
