//! The answer as text.

use std::fmt::Write as _;

use text_and_sizes::format;

use super::arguments::Arguments;
use super::client::Device;
use crate::table::{self, Layout};

const LAYOUT: Layout = Layout { indent: "  ", right: &[0, 1, 2], flexible: &[] };

/// One section for each device.
pub(super) fn of(devices: &[Device], arguments: &Arguments) -> String {
    if devices.is_empty() {
        let pid = arguments.pid;
        return format!("process {pid} has no memory of PyTorch on a device whose UUID is known\n");
    }
    devices.iter().map(section).collect::<Vec<_>>().join("\n")
}

fn section(device: &Device) -> String {
    let Device { framework, device: uuid, seconds, looks, sites, .. } = device;
    let intervals = looks.saturating_sub(1);
    let mut text = format!("{framework} on {uuid}\n");
    let steps = device.steps.filter(|&steps| steps > 0);
    if sites.is_empty() {
        let _ = writeln!(
            text,
            "  no call site grew in each of the {intervals} intervals with memory that stayed for a whole interval"
        );
    } else {
        let (rate, count) = steps.map_or(("PER SECOND", *seconds), |steps| ("PER STEP", steps));
        let row = |grown: &super::client::Grown| {
            let each = format::bytes(grown.bytes / count.max(1));
            [format::bytes(grown.bytes), each, format::bytes(grown.live_bytes), grown.site.clone()]
        };
        let rows = sites.iter().map(row).collect();
        let lines = table::lines(["GROWTH", rate, "LIVE", "CALL SITE"], rows, &LAYOUT, usize::MAX);
        lines.iter().for_each(|line| text += &format!("{line}\n"));
        match device.more_sites {
            Some(0) => {}
            Some(1) => text += "  1 more call site grew\n",
            Some(more) => text += &format!("  {more} more call sites grew\n"),
            None => text += "  whether more call sites grew is not known\n",
        }
    }
    let taken = match device.steps {
        Some(1) => "1 optimizer step".to_owned(),
        Some(steps) => format!("{steps} optimizer steps"),
        None => "no optimizer's step count is readable".to_owned(),
    };
    let _ = writeln!(text, "  {looks} looks in {seconds} s; {taken}; {}", unrecorded(device.unrecorded_bytes));
    text
}

/// What is not known about call sites.
fn unrecorded(bytes: Option<u64>) -> String {
    match bytes {
        Some(0) => "all live memory has a recorded call site".to_owned(),
        Some(bytes) => {
            format!("{} of live memory has no recorded call site, and may have grown too", format::bytes(bytes))
        }
        None => "how much live memory has no recorded call site is not known".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::client::Grown;
    use super::*;
    use crate::format::Format;

    fn device(steps: Option<u64>, sites: Vec<Grown>, more_sites: u64) -> Device {
        Device {
            framework: "pytorch".to_owned(),
            device: "GPU-1".to_owned(),
            seconds: 20,
            looks: 5,
            steps,
            sites,
            more_sites: Some(more_sites),
            unrecorded_bytes: Some(12 << 20),
        }
    }

    fn shown(devices: &[Device]) -> String {
        let (socket, time) = ("/s".into(), Duration::from_secs(20));
        of(devices, &Arguments { pid: 7, socket, time, looks: 5, format: Format::Text })
    }

    #[test]
    fn growth_is_shown_for_each_step() {
        let grown = |site: &str, mib: u64| Grown { site: site.to_owned(), bytes: mib << 20, live_bytes: 9 << 20 };
        let devices = [device(Some(37), vec![grown("train.py:9 step", 4), grown("a\u{202e}.py:1 f", 1)], 2)];
        let expected = "\
pytorch on GPU-1
  GROWTH   PER STEP   LIVE  CALL SITE
   4 MiB  110.7 KiB  9 MiB  train.py:9 step
   1 MiB  27.67 KiB  9 MiB  a\\u{202e}.py:1 f
  2 more call sites grew
  5 looks in 20 s; 37 optimizer steps; 12 MiB of live memory has no recorded call site, and may have grown too
";
        assert_eq!(shown(&devices), expected);
    }

    #[test]
    fn without_steps_growth_is_shown_for_each_second() {
        let grown = || vec![Grown { site: "train.py:9 step".to_owned(), bytes: 4 << 20, live_bytes: 9 << 20 }];
        for (steps, told) in [(None, "no optimizer's step count is readable"), (Some(0), "0 optimizer steps")] {
            let text = shown(&[device(steps, grown(), 0)]);
            assert!(text.contains("PER SECOND") && text.contains(" 204.8 KiB ") && text.contains(told), "{text}");
        }
    }

    #[test]
    fn nothing_that_grew_is_not_called_no_leak() {
        let expected = "\
pytorch on GPU-1
  no call site grew in each of the 4 intervals with memory that stayed for a whole interval
  5 looks in 20 s; 1 optimizer step; how much live memory has no recorded call site is not known
";
        let unknown = Device { unrecorded_bytes: None, ..device(Some(1), Vec::new(), 0) };
        assert_eq!(shown(&[unknown]), expected);
        assert!(shown(&[]).contains("process 7 has no memory of PyTorch"));
    }
}
