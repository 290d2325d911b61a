//! Curves stay within their bounds, repeat, and are the same every time.

use super::*;
use crate::scenario::curves::Curve as Written;
use crate::scenario::units::Size;

const MIB: f64 = 1_048_576.0;

#[derive(serde::Deserialize)]
struct File {
    memory: Written<Size>,
}

fn curve(text: &str, cycle: bool) -> Result<Curve, (String, String)> {
    let file: File = toml::from_str(&format!("memory = {text}")).unwrap_or_else(|error| panic!("{error}"));
    let Written::Phases(phases) = file.memory else { panic!("no phases") };
    Curve::of(&phases, cycle, true)
}

fn ms(n: i64) -> Nanos {
    n * 1_000_000
}

#[test]
fn a_spike_is_held_as_long_as_written() {
    let curve = curve(r#"[{kind="spike", base="1GiB", peak="5GiB", hold="20ms", every="1s", after="100ms"}]"#, false);
    let curve = curve.unwrap();
    let high: Vec<i64> = (0..3000).filter(|&t| curve.at(ms(t), 0) > 2e9).collect();
    let expected: Vec<i64> = [100, 1100, 2100].into_iter().flat_map(|start| start..start + 20).collect();
    assert_eq!(high, expected);
    assert_eq!(curve.peak(ms(99), 0), 1024.0 * MIB);
    assert_eq!(curve.peak(ms(100), 0), 5120.0 * MIB);
}

#[test]
fn phases_follow_each_other_and_the_last_value_stays() {
    let text = r#"[{kind="ramp", from="0B", to="100MiB", for="1s"}, {kind="constant", value="10MiB", for="1s"}]"#;
    let once = curve(text, false).unwrap();
    assert_eq!(once.at(0, 0), 0.0);
    assert_eq!(once.at(ms(500), 0), 50.0 * MIB);
    assert_eq!(once.at(ms(1500), 0), 10.0 * MIB);
    assert_eq!(once.at(ms(60_000), 0), 10.0 * MIB);
    // The top of the ramp is the start of the next phase; the last value before it is one piece lower.
    assert_eq!(once.peak(ms(60_000), 0), 98.0 * MIB);
    let cycle = curve(text, true).unwrap();
    assert_eq!(cycle.at(ms(60_500), 0), 50.0 * MIB);
    assert_eq!(cycle.peak(ms(500), 0), 50.0 * MIB);
}

#[test]
fn every_shape_stays_in_its_bound_and_its_peak_is_the_highest_seen() {
    let shapes = [
        r#"{kind="noise", low="10MiB", high="90MiB", every="7ms", for="2s"}"#,
        r#"{kind="sawtooth", low="10MiB", high="90MiB", every="300ms", for="2s"}"#,
        r#"{kind="wave", low="10MiB", high="90MiB", every="300ms", for="2s"}"#,
        r#"{kind="leak", base="10MiB", rate="30MiB", for="2s"}"#,
        r#"{kind="step", from="10MiB", by="8MiB", every="100ms", limit="80MiB", for="2s"}"#,
        r#"{kind="spike", base="10MiB", peak="90MiB", hold="5ms", every="200ms", jitter="100ms", for="2s"}"#,
        r#"{kind="ramp", from="90MiB", to="10MiB", for="2s"}"#,
    ];
    for shape in shapes {
        let curve = curve(&format!("[{shape}]"), true).unwrap();
        let mut highest = 0.0_f64;
        for t in 0..1999 {
            let value = curve.at(ms(t), 42);
            assert!((10.0 * MIB..=curve.bound()).contains(&value), "{shape} {t}: {value}");
            assert_eq!(value, curve.at(ms(t), 42));
            highest = highest.max(value);
            let peak = curve.peak(ms(t), 42);
            // Sampling at whole milliseconds may miss the top of a slope by one grain.
            assert!(peak >= highest && peak <= highest + GRAIN, "{shape} {t}: {peak} {highest}");
        }
    }
}

#[test]
fn the_cosine_is_the_cosine() {
    for step in 0..=10_000 {
        let turn = f64::from(step) / 10_000.0;
        let (ours, real) = (cosine(turn), (std::f64::consts::TAU * turn).cos());
        assert!((ours - real).abs() < 1e-14 && (-1.0..=1.0).contains(&ours), "{turn}: {ours} and {real}");
    }
}

#[test]
fn what_cannot_be_names_its_key() {
    let error = |text: &str, cycle| curve(text, cycle).unwrap_err().0;
    assert_eq!(error(r#"[{kind="leak", base="0B", rate="1MiB"}]"#, false), "[0].limit");
    assert_eq!(error(r#"[{kind="constant", value="0B"}, {kind="constant", value="0B"}]"#, false), "[0].for");
    assert_eq!(error(r#"[{kind="constant", value="0B"}]"#, true), "[0].for");
    assert_eq!(error(r#"[{kind="noise", low="2B", high="1B", every="1s"}]"#, false), "[0].high");
    assert_eq!(error(r#"[{kind="noise", low="1B", high="2B", every="0s"}]"#, false), "[0].every");
    assert_eq!(error(r#"[{kind="spike", base="1B", peak="2B", hold="2s", every="1s"}]"#, false), "[0].every");
}
