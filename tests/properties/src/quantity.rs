//! An amount of memory in the notation of Kubernetes: it has the value that a second implementation computes, or it is
//! refused in one short line.

use text_and_sizes::quantity;

use crate::choices::{Choose, Unstructured, choices};

const SUFFIXES: [(&str, f64); 16] = [
    ("", 1.0),
    ("n", 1e-9),
    ("u", 1e-6),
    ("m", 1e-3),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("P", 1e15),
    ("E", 1e18),
    ("Ki", 1024.0),
    ("Mi", 1048576.0),
    ("Gi", 1073741824.0),
    ("Ti", 1099511627776.0),
    ("Pi", 1125899906842624.0),
    ("Ei", 1152921504606846976.0),
];

/// Reads an amount. True if it was accepted.
pub fn quantity(data: &[u8]) -> bool {
    let made = choices(data).map(|mut u| text(&mut u));
    let text = made.unwrap_or_else(|| String::from_utf8_lossy(data).into_owned());
    let expected = reference(&text);
    match quantity::bytes(&text) {
        Ok(bytes) => {
            let expected = expected.expect("the second implementation refuses it");
            // The reference is not exact; amounts are rounded up.
            let error = (bytes as f64 - expected.ceil()).abs();
            assert!(bytes > 0 && error <= 1.0 + expected * 1e-12, "{text:?}: {bytes}, not {expected}");
            true
        }
        Err(error) => {
            let fits = expected.is_some_and(|value| value > 0.0 && value < u64::MAX as f64 * 0.999_999);
            assert!(!fits || text.len() > 30, "{text:?} is refused: {error}");
            let line = error.to_string();
            assert!(line.len() < 1000 && !line.chars().any(char::is_control), "{line:?}");
            false
        }
    }
}

/// The value by floating-point numbers; `None` if the text is not a quantity.
fn reference(text: &str) -> Option<f64> {
    let unsigned = text.strip_prefix('+').unwrap_or(text);
    let digits = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(digits);
    // Rust reads "1.", ".5" and "1.5" as Kubernetes does, and refuses "" and ".".
    let number: f64 = number.parse().ok()?;
    if let Some((_, factor)) = SUFFIXES.iter().find(|(name, _)| *name == suffix) {
        return Some(number * factor);
    }
    let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
    (exponent.abs() <= 30).then(|| number * 10f64.powi(exponent))
}

fn text(u: &mut Unstructured<'_>) -> String {
    let number = match u.below(4) {
        0 => format!("{}.{}", u.below(100), u.below(1000)),
        1 => format!("{}", u.number()),
        2 => u.pick(&["0", "00", ".5", "5.", ".", "1.2.3", "+7", "-7", ""]).to_owned(),
        _ => format!("{}", u.below(4096)),
    };
    let suffix = match u.below(8) {
        0 => format!("e{}", u.below(40)),
        1 => format!("E-{}", u.below(40)),
        2 => u.text(3),
        _ => SUFFIXES[u.below(SUFFIXES.len())].0.to_owned(),
    };
    number + &suffix
}
