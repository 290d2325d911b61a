//! Which format of the metrics a request asks for.
//!
//! Invariant: OpenMetrics is sent only to a client that names it. A header that cannot be read asks for nothing.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use mediatype::{MediaType, MediaTypeList, Name, ReadParams as _, names};

use gpu_metrics::Format;

/// A media type that can be sent.
struct Offer {
    kind: Name<'static>,
    subtype: Name<'static>,
    version: &'static str,
}

const OPEN_METRICS: Offer =
    Offer { kind: names::APPLICATION, subtype: Name::new_unchecked("openmetrics-text"), version: "1.0.0" };
const TEXT: Offer = Offer { kind: names::TEXT, subtype: names::PLAIN, version: "0.0.4" };

/// The format that a request asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wanted(pub(super) Format);

impl<S: Sync> FromRequestParts<S> for Wanted {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(wanted(&parts.headers)))
    }
}

/// OpenMetrics, if the client names it and prefers the text format no more than that.
fn wanted(headers: &HeaderMap) -> Format {
    let named = quality(headers, &OPEN_METRICS).filter(|(specificity, _)| *specificity >= EXACT);
    let text = quality(headers, &TEXT).map_or(0, |(_, quality)| quality);
    match named {
        Some((_, quality)) if quality > 0 && quality >= text => Format::OpenMetrics,
        _ => Format::Text,
    }
}

/// The specificity of a range that names type and subtype.
const EXACT: usize = 2;

/// The most specific range of the header that contains the offer: its specificity, and its quality in thousandths.
fn quality(headers: &HeaderMap, offer: &Offer) -> Option<(usize, u16)> {
    let lists = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let ranges = lists.flat_map(MediaTypeList::new).filter_map(Result::ok);
    ranges.filter_map(|range| Some((specificity(&range, offer)?, thousandths(&range)?))).max()
}

/// How precisely a range describes the offer; `None` if it does not contain the offer. A parameter that neither format
/// has, such as Prometheus' `escaping`, excludes nothing: no name needs to be escaped.
fn specificity(range: &MediaType<'_>, offer: &Offer) -> Option<usize> {
    let is_any = |name: Name<'_>| name == names::_STAR;
    let matches = |asked: Name<'_>, offered: Name<'_>| is_any(asked) || asked == offered;
    let is_plain = range.suffix.is_none();
    if !is_plain || !matches(range.ty, offer.kind) || !matches(range.subty, offer.subtype) {
        return None;
    }
    let parameters = [(Name::new_unchecked("version"), offer.version), (names::CHARSET, "utf-8")];
    let mut precision = usize::from(!is_any(range.ty)) + usize::from(!is_any(range.subty));
    for (name, offered) in parameters {
        if let Some(asked) = range.get_param(name) {
            if !asked.unquoted_str().eq_ignore_ascii_case(offered) {
                return None;
            }
            precision += 1;
        }
    }
    Some(precision)
}

/// The quality of a range; `None` if it is not a number from 0 to 1.
fn thousandths(range: &MediaType<'_>) -> Option<u16> {
    let Some(quality) = range.get_param(names::Q) else { return Some(1000) };
    let quality: f64 = quality.as_str().parse().ok()?;
    (0.0..=1.0).contains(&quality).then(|| (quality * 1000.0).round() as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(accept: &[&str]) -> Format {
        let mut headers = HeaderMap::new();
        for value in accept {
            headers.append(header::ACCEPT, value.parse().unwrap());
        }
        wanted(&headers)
    }

    /// What Prometheus 2.42, 2.53 and 3.5 send by default.
    const PROMETHEUS: [&str; 3] = [
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
         text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,\
         text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
         application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,\
         text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
    ];

    #[test]
    fn openmetrics_is_for_those_who_name_it() {
        for accept in PROMETHEUS.into_iter().chain([
            "application/openmetrics-text",
            "Application/OpenMetrics-Text; Version=1.0.0; Charset=UTF-8",
            "application/openmetrics-text; version=\"1.0.0\"",
            "text/plain, application/openmetrics-text",
            "text/plain;q=0.2, application/openmetrics-text;q=0.3",
            "application/vnd.google.protobuf;q=1, application/openmetrics-text;q=0.1",
            "text/plain;version=1.0.0, application/openmetrics-text;q=0.001",
        ]) {
            assert_eq!(asked(&[accept]), Format::OpenMetrics, "{accept}");
        }
        let split = ["text/plain;q=0.5", "application/openmetrics-text;version=1.0.0"];
        assert_eq!(asked(&split), Format::OpenMetrics, "a header may occur twice");
    }

    #[test]
    fn everybody_else_gets_the_text_format() {
        assert_eq!(asked(&[]), Format::Text);
        for accept in [
            "",
            "*/*",
            "application/*",
            "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
            "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "application/openmetrics-text;version=0.0.1",
            "application/openmetrics-text;version=2.0.0",
            "application/openmetrics-text;version=0.0.1,text/plain;version=0.0.4;q=0.5",
            "application/openmetrics-text;charset=utf-16",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=0.000",
            "application/openmetrics-text;q=2",
            "application/openmetrics-text;q=NaN",
            "application/openmetrics-text;q=-1",
            "application/openmetrics-text;q=x",
            "application/openmetrics-text;q=0.4,text/plain;q=0.5",
            "application/openmetrics-text;q=0.4,*/*;q=0.5",
            "application/openmetrics-text;q=1,application/openmetrics-text;version=1.0.0;q=0",
            "application/openmetrics-text;version",
            "application/openmetrics-textual",
            "application/openmetrics-text+x",
            ",;,q=",
        ] {
            assert_eq!(asked(&[accept]), Format::Text, "{accept}");
        }
    }

    #[test]
    fn a_range_that_cannot_be_read_leaves_the_others() {
        assert_eq!(asked(&["/,application/openmetrics-text"]), Format::OpenMetrics);
        assert_eq!(asked(&["\u{80}", "application/openmetrics-text"]), Format::OpenMetrics);
    }
}
