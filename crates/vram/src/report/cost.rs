//! What the energy of a workload costs.
//!
//! Invariant: if the energy on a device is unknown, no cost is shown.

use serde_json::Value;
use vram_exporter::recorder::{JobReport, report_text};

use crate::format::Format;

const JOULES_PER_KWH: f64 = 3.6e6;

/// The reports, one JSON object on each line, as text or as JSON with what the energy of each costs at this price of a kWh.
///
/// # Errors
/// When a line is not a report.
pub(super) fn add(lines: &str, price: f64, format: Format) -> serde_json::Result<String> {
    let mut out = String::new();
    for (index, line) in lines.lines().enumerate() {
        let mut report: Value = serde_json::from_str(line)?;
        let kwh = energy(&report);
        if format == Format::Json {
            if let (Some(kwh), Some(fields)) = (kwh, report.as_object_mut()) {
                fields.insert("energy_cost".to_owned(), (kwh * price).into());
            }
            out += &report.to_string();
        } else {
            let report: JobReport = serde_json::from_value(report)?;
            out += if index == 0 { "" } else { "\n" };
            out += &report_text(&report);
            out += &sentence(kwh, price);
        }
        out.push('\n');
    }
    Ok(out)
}

/// The energy of the workload on all its devices in kWh; `None` if that on one of them is unknown.
fn energy(report: &Value) -> Option<f64> {
    let devices = report.get("gpus")?.as_array().filter(|devices| !devices.is_empty())?;
    let joules: Option<f64> = devices.iter().map(|device| device.get("energy_joules")?.as_f64()).sum();
    Some(joules? / JOULES_PER_KWH)
}

fn sentence(kwh: Option<f64>, price: f64) -> String {
    match kwh {
        None => "  cost unknown: its energy is not known on every GPU (telemetry.workload-energy; never with MIG)"
            .to_owned(),
        Some(kwh) => {
            format!("  cost {:.4}: {kwh:.4} kWh at {price}, by its share of SM time: an estimate", kwh * price)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report about a workload with this energy on each of its devices.
    fn line(joules: &[Option<f64>]) -> String {
        let device = |joules: &Option<f64>| match joules {
            Some(joules) => format!(
                r#"{{"gpu":0,"uuid":"GPU-0","seconds":1.0,"samples":1,"out_of_memory":0,"energy_joules":{joules}}}"#
            ),
            None => r#"{"gpu":1,"uuid":"GPU-1","seconds":1.0,"samples":1,"out_of_memory":0}"#.to_owned(),
        };
        let devices = joules.iter().map(device).collect::<Vec<_>>().join(",");
        format!(
            r#"{{"version":1,"workload":"slurm:7","kind":"slurm","simulated":false,"state":"ended","start":0.0,"seconds":1.0,"seen_from_start":true,"processes":1,"exits":[],"gpus":[{devices}],"of_a_later_version":1}}"#
        )
    }

    #[test]
    fn the_energy_of_all_devices_has_a_price() {
        let lines = line(&[Some(7.2e6), Some(1.8e6)]) + "\n" + &line(&[Some(0.0)]) + "\n";
        let text = add(&lines, 0.3, Format::Text).unwrap();
        assert!(text.contains("energy 7200000 J (2.0000 kWh), by its share of SM time: an estimate"), "{text}");
        assert!(text.contains("  cost 0.7500: 2.5000 kWh at 0.3, by its share"), "{text}");
        assert_eq!(
            (text.matches("GPU memory of").count(), text.matches("\n\nGPU memory of").count()),
            (2, 1),
            "{text}"
        );
        let json = add(&lines, 0.3, Format::Json).unwrap();
        let costs = json.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["energy_cost"].as_f64());
        assert_eq!(costs.collect::<Vec<_>>(), [Some(0.75), Some(0.0)]);
        assert!(json.contains("of_a_later_version"), "{json}");
    }

    #[test]
    fn unknown_energy_costs_nothing_that_is_known() {
        for unknown in [&[None][..], &[Some(3.6e6), None], &[]] {
            let text = add(&line(unknown), 0.3, Format::Text).unwrap();
            assert!(text.contains("  cost unknown: "), "{text}");
            assert!(!add(&line(unknown), 0.3, Format::Json).unwrap().contains("energy_cost"), "{unknown:?}");
        }
        assert!(add("<html>", 0.3, Format::Text).is_err() && add("{}", 0.3, Format::Text).is_err());
    }
}
