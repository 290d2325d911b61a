//! The exporter's own annotations: `vram-exporter/gpu-memory-limit` for every container of a pod, and
//! `vram-exporter/gpu-memory-limit.CONTAINER` for one of them, which takes precedence.

use super::keys::{LIMIT, is_own};
use super::{Declared, DeclaredPlace, has_container};
use crate::kubernetes::api::declared::{Spec, Texts};
use crate::quantity::{self, quoted};
use crate::snapshot::{BudgetAmount, BudgetPlace, BudgetSource};

/// The limits of the containers on each GPU.
pub(super) fn read(annotations: &Texts, spec: &Spec) -> Result<Vec<Declared>, String> {
    let mut own = annotations.iter().filter(|(key, _)| is_own(key)).peekable();
    if own.peek().is_none() {
        return Ok(Vec::new());
    }
    if annotations.too_many {
        return Err(format!("more annotations {LIMIT} than are read"));
    }
    let (mut general, mut single) = (None, Vec::new());
    for (key, text) in own {
        let text = text.ok_or_else(|| format!("the annotation {} is too long", quoted(key)))?;
        let limit = quantity::bytes(text).map_err(|error| format!("the annotation {}: {error}", quoted(key)))?;
        match key.strip_prefix(LIMIT).and_then(|rest| rest.strip_prefix('.')) {
            None => general = Some(limit),
            Some(name) if has_container(spec, name) => single.push((name, limit)),
            Some(name) => return Err(format!("the annotation {LIMIT} names {}, which is no container", quoted(name))),
        }
    }
    let of = |name: &str| single.iter().find(|(single, _)| *single == name).map(|(_, limit)| *limit).or(general);
    let names = spec.all().filter_map(|container| container.name.as_deref());
    Ok(names
        .filter_map(|name| {
            Some(Declared {
                container: name.to_owned(),
                source: BudgetSource::Annotation,
                amount: BudgetAmount::Bytes(of(name)?),
                place: DeclaredPlace::At(BudgetPlace::EachGpu),
            })
        })
        .collect())
}
