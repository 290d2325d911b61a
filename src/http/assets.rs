//! The files of the page: its scripts, its style sheet and its icon. And the runbook, which looks like the page.
//!
//! Invariant: they are part of the program and do not depend on the request.

use axum::http::header;
use axum::response::{IntoResponse, Response};

/// The path of the main script, which imports the others. Their paths begin with `/page-`.
pub(super) const SCRIPT: &str = "/page.js";
/// The path of the style sheet.
pub(super) const STYLE: &str = "/page.css";
/// Where browsers look for an icon, whatever page they show.
pub(super) const ICON: &str = "/favicon.ico";
/// The path of the runbook.
pub(super) const RUNBOOK: &str = "/runbook";
/// `docs/runbook.md` as HTML. The id of each section is the name of its alert in lower case.
pub(super) const RUNBOOK_PAGE: &str = include_str!("runbook.html");

/// A file of the page.
pub(super) struct Asset {
    pub(super) path: &'static str,
    content_type: &'static str,
    /// The scripts and the style sheet must match the version of the page, so a browser requests them each time.
    cache: &'static str,
    body: &'static str,
}

pub(super) static ALL: [Asset; 15] = [
    script(SCRIPT, include_str!("page.js")),
    script("/page-address.js", include_str!("page-address.js")),
    script("/page-card.js", include_str!("page-card.js")),
    script("/page-charts.js", include_str!("page-charts.js")),
    script("/page-elements.js", include_str!("page-elements.js")),
    script("/page-failure.js", include_str!("page-failure.js")),
    script("/page-incidents.js", include_str!("page-incidents.js")),
    script("/page-mig.js", include_str!("page-mig.js")),
    script("/page-owners.js", include_str!("page-owners.js")),
    script("/page-plot.js", include_str!("page-plot.js")),
    script("/page-processes.js", include_str!("page-processes.js")),
    script("/page-requests.js", include_str!("page-requests.js")),
    script("/page-state.js", include_str!("page-state.js")),
    Asset { path: STYLE, content_type: "text/css; charset=utf-8", cache: "no-cache", body: include_str!("page.css") },
    Asset { path: ICON, content_type: "image/svg+xml", cache: "max-age=86400", body: include_str!("icon.svg") },
];

const fn script(path: &'static str, body: &'static str) -> Asset {
    Asset { path, content_type: "text/javascript; charset=utf-8", cache: "no-cache", body }
}

impl Asset {
    pub(super) fn response(&self) -> Response {
        let headers = [(header::CONTENT_TYPE, self.content_type), (header::CACHE_CONTROL, self.cache)];
        (headers, self.body).into_response()
    }
}
