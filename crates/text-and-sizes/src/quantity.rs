//! Amounts of memory as Kubernetes writes them: `20Gi`, `1500M`, `1.5e9`, `21474836480`.
//!
//! Invariant: a text has exactly the meaning that Kubernetes gives it, rounded up to whole bytes, or it is refused. What
//! is refused is named in the error, shortened and with its special characters escaped.

use crate::text;

/// The longest text that can be an amount. The API server itself writes none with more than about 25 characters.
const LONGEST: usize = 64;
/// The number of characters of a refused text that an error quotes.
const QUOTED: usize = 40;

/// The suffixes for powers of 1024.
const BINARY: [(&str, u32); 6] = [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];
/// The suffixes for powers of 10, with the exponent.
const DECIMAL: [(&str, i32); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
/// Powers of 10 beyond this in either direction are refused: the result would be 0 or more than 16 EiB.
const LARGEST_EXPONENT: i32 = 30;

/// The text is not an amount of memory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} {why}; write an amount of memory above 0, such as 20Gi or 21474836480", quoted(text))]
pub struct Invalid {
    text: String,
    why: &'static str,
}

/// The number of bytes, at least 1.
///
/// # Errors
/// When the text is not a quantity, is 0 or negative, or exceeds 16 EiB.
pub fn bytes(text: &str) -> Result<u64, Invalid> {
    match number(text) {
        Ok(0) => Err(Invalid { text: shortened(text), why: "is 0" }),
        Ok(bytes) => Ok(bytes),
        Err(why) => Err(Invalid { text: shortened(text), why }),
    }
}

/// The number that a quantity stands for, rounded up; 0 is accepted.
///
/// # Errors
/// Why the text is refused.
pub fn number(text: &str) -> Result<u64, &'static str> {
    const TOO_LARGE: &str = "is too large";
    if text.len() > LONGEST {
        return Err("is too long for a quantity");
    }
    if text.starts_with('-') {
        return Err("is negative");
    }
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.bytes().position(|byte| !byte.is_ascii_digit() && byte != b'.').unwrap_or(text.len());
    let (mantissa, suffix) = text.split_at(end);
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return Err("is not a quantity");
    }
    let mut digits = whole.bytes().chain(fraction.trim_end_matches('0').bytes());
    let sum = digits.try_fold(0u128, |sum, digit| sum.checked_mul(10)?.checked_add(u128::from(digit - b'0')));
    let digits = sum.ok_or(TOO_LARGE)?;
    // At most 64 characters, so the length fits.
    let after_point = fraction.trim_end_matches('0').len() as i32;
    let (factor, exponent) = scale(suffix)?;
    if digits == 0 {
        return Ok(0);
    }
    let scaled = digits.checked_mul(factor).ok_or(TOO_LARGE)?;
    let exponent = exponent - after_point;
    let power = 10u128.checked_pow(exponent.unsigned_abs());
    let value = match (exponent >= 0, power) {
        (true, Some(power)) => scaled.checked_mul(power).ok_or(TOO_LARGE)?,
        (true, None) => return Err(TOO_LARGE),
        (false, Some(power)) => scaled.div_ceil(power),
        (false, None) => 1,
    };
    u64::try_from(value).map_err(|_| TOO_LARGE)
}

/// The factor of a suffix, and the exponent of its power of 10.
fn scale(suffix: &str) -> Result<(u128, i32), &'static str> {
    if let Some((_, shift)) = BINARY.iter().find(|(name, _)| *name == suffix) {
        return Ok((1 << shift, 0));
    }
    if let Some((_, exponent)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
        return Ok((1, *exponent));
    }
    let exponent = suffix.strip_prefix(['e', 'E']).and_then(|digits| digits.parse::<i32>().ok());
    let exponent = exponent.ok_or("has no suffix that Kubernetes knows")?;
    if !(-LARGEST_EXPONENT..=LARGEST_EXPONENT).contains(&exponent) {
        return Err("has an exponent below -30 or above 30");
    }
    Ok((1, exponent))
}

fn shortened(text: &str) -> String {
    text.chars().take(QUOTED + 1).collect()
}

/// The text in quotation marks for an error message: at most 40 characters of it.
pub fn quoted(text: &str) -> String {
    text::quoted(text, QUOTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each value was computed by Kubernetes' own `resource.MustParse(text).Value()`, or follows from its rule that
    /// values are rounded up.
    #[test]
    fn quantities_mean_what_kubernetes_means() {
        let cases = [
            ("1", 1),
            ("20Gi", 20 << 30),
            ("1Ki", 1024),
            ("1.5Gi", 3 << 29),
            (".5Gi", 1 << 29),
            ("5.", 5),
            ("+7M", 7_000_000),
            ("1500m", 2),
            ("1n", 1),
            ("1E", 1_000_000_000_000_000_000),
            ("1E3", 1000),
            ("1.5e9", 1_500_000_000),
            ("12e-1", 2),
            ("0.1", 1),
            ("0001", 1),
            ("1.000000000000000000000000000000", 1),
            ("15Ei", 15 << 60),
            ("18446744073709551615", u64::MAX),
        ];
        for (text, expected) in cases {
            assert_eq!(bytes(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused_with_its_reason() {
        let cases = [
            ("", "\"\" is not a quantity"),
            (".", "\".\" is not a quantity"),
            ("Gi", "\"Gi\" is not a quantity"),
            ("1.2.3", "is not a quantity"),
            ("0", "\"0\" is 0"),
            ("0Gi", "is 0"),
            ("-5Gi", "is negative"),
            ("20GB", "has no suffix that Kubernetes knows"),
            ("20 Gi", "has no suffix"),
            ("20gi", "has no suffix"),
            ("1e", "has no suffix"),
            ("1e1.5", "has no suffix"),
            ("1e31", "has an exponent below -30 or above 30"),
            ("1e-31", "has an exponent"),
            ("1e-2147483648", "has an exponent"),
            ("16Ei", "is too large"),
            ("18446744073709551616", "is too large"),
            ("99999999999999999999999999999999999999999999", "is too large"),
            ("9e30", "is too large"),
            ("1\n", "\"1\\n\" has no suffix"),
        ];
        for (text, expected) in cases {
            let refused = bytes(text).expect_err(text).to_string();
            assert!(refused.contains(expected) && refused.contains("such as 20Gi"), "{text:?}: {refused}");
        }
        let long = bytes(&"9".repeat(1 << 20)).expect_err("too long").to_string();
        assert!(long.contains("\"… is too long") && long.len() < 200, "{long}");
    }
}
