//! Which address is answered by which handler.
use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};

use crate::metrics;
use crate::state::App;
use crate::{assets, guard, web};

/// All pages of the process.
pub fn router(app: App) -> Router {
    Router::new()
        .route("/", get(web::home))
        .merge(metrics::routes())
        .route("/assets/{hash}/{name}", get(assets::serve))
        .route("/db/{db}", get(web::overview::overview))
        .route("/db/{db}/live", get(web::live::live))
        .route("/db/{db}/queues/{queue}", get(web::queue::queue))
        .route("/db/{db}/queues/{queue}/series", get(web::charts::series))
        .route(
            "/db/{db}/queues/{queue}/documents",
            get(web::documents::documents),
        )
        .route(
            "/db/{db}/queues/{queue}/document",
            get(web::document::document),
        )
        .route(
            "/db/{db}/queues/{queue}/history",
            get(web::history::history),
        )
        .route(
            "/db/{db}/queues/{queue}/settings",
            get(web::settings::settings),
        )
        .route(
            "/db/{db}/dead-letters",
            get(web::dead_letters::dead_letters),
        )
        .route("/db/{db}/workers", get(web::workers::workers))
        .route("/db/{db}/schedules", get(web::schedules::schedules))
        .route("/db/{db}/maintenance", get(web::maintenance::maintenance))
        .route("/db/{db}/act", post(web::actions::act))
        .fallback(web::nothing)
        .layer(from_fn_with_state(app.clone(), guard::guard))
        .with_state(app)
}
