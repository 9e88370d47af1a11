//! The files that browsers load, inside the program. Their addresses have a hash of the content, so
//! browsers keep them for good, and get the new ones of a new version.
use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use ring::digest;

/// A file, and where it is.
pub struct Asset {
    name: &'static str,
    kind: &'static str,
    bytes: &'static [u8],
    hash: LazyLock<String>,
}

macro_rules! asset {
    ($name:ident, $file:literal, $kind:literal) => {
        pub static $name: Asset = Asset {
            name: $file,
            kind: $kind,
            bytes: include_bytes!(concat!("../assets/", $file)),
            hash: LazyLock::new(|| hash(include_bytes!(concat!("../assets/", $file)))),
        };
    };
}

asset!(STYLE, "console.css", "text/css; charset=utf-8");
asset!(SCRIPT, "console.js", "text/javascript; charset=utf-8");
asset!(CHART_STYLE, "uPlot.min.css", "text/css; charset=utf-8");
asset!(
    CHART_SCRIPT,
    "uPlot.iife.min.js",
    "text/javascript; charset=utf-8"
);
asset!(ICON, "icon.svg", "image/svg+xml");

fn hash(bytes: &[u8]) -> String {
    digest::digest(&digest::SHA256, bytes)
        .as_ref()
        .iter()
        .take(6)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

impl Asset {
    /// The address of the file.
    pub fn address(&self) -> String {
        format!("/assets/{}/{}", *self.hash, self.name)
    }
}

/// Answers with a file.
pub async fn serve(Path((hash, name)): Path<(String, String)>) -> Response {
    let all = [&STYLE, &SCRIPT, &CHART_STYLE, &CHART_SCRIPT, &ICON];
    let Some(asset) = all
        .into_iter()
        .find(|asset| asset.name == name && *asset.hash == hash)
    else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let headers = [
        (header::CONTENT_TYPE, asset.kind),
        (header::CACHE_CONTROL, "public, max-age=31536000, immutable"),
    ];
    (headers, asset.bytes).into_response()
}
