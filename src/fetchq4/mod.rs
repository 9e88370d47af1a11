//! What only clients of fetchq 4 call, and the upgrade from it. Calls that fetchq 5 has as well are in
//! `src/api/`.

mod api;
mod store;
