//! An incident as the list of incidents shows it: what identifies it, and its sentence.

use serde::Serialize;
use serde_with_macros::skip_serializing_none;

use crate::recorder::{Incident, Kind};

/// An incident in the list of incidents.
#[skip_serializing_none]
#[derive(Serialize)]
pub(super) struct Listed<'i> {
    id: &'i str,
    kind: Kind,
    at: f64,
    count: u64,
    last_at: Option<f64>,
    complete: bool,
    gpu: u32,
    uuid: &'i str,
    mig_uuid: Option<&'i str>,
    summary: &'i str,
}

impl<'i> Listed<'i> {
    pub(super) fn of(incident: &'i Incident) -> Self {
        let Incident { id, kind, at, count, last_at, complete, gpu, summary, .. } = incident;
        let (kind, at, count, last_at, complete) = (*kind, *at, *count, *last_at, *complete);
        Self {
            id,
            kind,
            at,
            count,
            last_at,
            complete,
            gpu: gpu.index,
            uuid: &gpu.uuid,
            mig_uuid: gpu.mig_uuid(),
            summary,
        }
    }
}
