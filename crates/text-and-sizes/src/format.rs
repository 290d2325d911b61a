//! Sizes and times as human-readable text.

const KIB: f64 = 1024.0;
const UNITS: [&str; 4] = ["B", "KiB", "MiB", "GiB"];

/// Bytes with three or more significant digits: `520 MiB`, `12.52 GiB`.
pub fn bytes(bytes: u64) -> String {
    let mut value = bytes as f64;
    let mut unit = 0;
    // From 1000 on, the next unit is easier to read.
    while value >= 1000.0 && unit + 1 < UNITS.len() {
        value /= KIB;
        unit += 1;
    }
    let digits = if unit == 0 || (value.fract() == 0.0 && unit < 3) { 0 } else { decimals(value) };
    format!("{value:.digits$} {}", UNITS[unit])
}

fn decimals(value: f64) -> usize {
    match value {
        v if v < 100.0 => 2,
        v if v < 1000.0 => 1,
        _ => 0,
    }
}

/// Seconds: `0.124 s`, `12.4 s`, `2 h 05 min`.
pub fn seconds(seconds: f64) -> String {
    match seconds {
        s if s < 1.0 => format!("{s:.3} s"),
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{} min {:02} s", s as u64 / 60, s as u64 % 60),
        s => format!("{} h {:02} min", s as u64 / 3600, s as u64 % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short_and_have_their_unit() {
        let cases = [
            (0, "0 B"),
            (999, "999 B"),
            (520 << 20, "520 MiB"),
            (1000 << 20, "0.98 GiB"),
            (12_820 << 20, "12.52 GiB"),
            (150_109_880_320, "139.8 GiB"),
            (3 << 40, "3072 GiB"),
            (1536, "1.50 KiB"),
        ];
        assert_eq!(cases.map(|(size, _)| bytes(size)), cases.map(|(_, text)| text.to_owned()));
    }

    #[test]
    fn times_are_short_and_have_their_unit() {
        let cases = [(0.1239, "0.124 s"), (12.42, "12.4 s"), (125.9, "2 min 05 s"), (7512.0, "2 h 05 min")];
        assert_eq!(cases.map(|(time, _)| seconds(time)), cases.map(|(_, text)| text.to_owned()));
    }
}
