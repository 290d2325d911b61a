//! The pushes to an OTLP receiver. Shown only if one is configured.

use super::exposition::Exposition;
use super::family::{Cadence, Family, Series};
use super::label::Labels;
use super::openmetrics::Counted;
use super::section::{Pass, Section};

static PUSHES: Family = Series::new(Cadence::Scrape, &["outcome"]).family(
    "vram_exporter_otlp_pushes_total",
    "Pushes to otlp.endpoint by outcome: delivered, or dropped after the last attempt. Both are present from the start, with the value 0. A push counts once, however often it is tried.",
);
static REJECTED: Family = Series::ONE.family(
    "vram_exporter_otlp_rejected_points_total",
    "Data points that the receiver rejected in pushes that it accepted.",
);
static LAST: Family = Series::ONE.family(
    "vram_exporter_otlp_last_delivery_timestamp_seconds",
    "When the receiver last accepted a push, in seconds since the Unix epoch. Absent before the first.",
);

pub(super) static SECTION: Section = Section {
    title: "Pushes to an OTLP receiver",
    intro: "Present only if `otlp.endpoint` is set. Left out with `web.disable-exporter-metrics`.",
    families: &[&PUSHES, &REJECTED, &LAST],
    collect,
};

fn collect(&Pass { snapshot, settings, started, .. }: &Pass<'_>, out: &mut Exposition<'_>) {
    if !settings.exporter_metrics || !settings.otlp {
        return;
    }
    let pushes = &snapshot.pushes;
    let counts = ["delivered", "dropped"].into_iter().zip(pushes.counts());
    let counted = |count: u64| Counted::since(Some(started), count as f64);
    out.add(&PUSHES, counts.map(|(outcome, count)| (Labels::default().and("outcome", outcome), counted(count))));
    out.add_one(&REJECTED, counted(pushes.rejected_points()));
    out.add(&LAST, pushes.last_delivery().map(|at| ("", at.as_secs_f64())));
}
