//! Numbers that look random and are the same in every run: the only source of randomness in a scenario.

/// Mixes two words into one (the finalizer of SplitMix64).
pub(crate) fn mix(a: u64, b: u64) -> u64 {
    let mut z = a.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(b).wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A number in 0..1.
pub(crate) fn fraction(a: u64, b: u64) -> f64 {
    // An f64 holds 53 bits.
    (mix(a, b) >> 11) as f64 / (1_u64 << 53) as f64
}

/// A UUID derived from a word, as text.
pub(crate) fn uuid(word: u64) -> String {
    let (a, b) = (mix(word, 1), mix(word, 2));
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        a >> 32,
        (a >> 16) & 0xFFFF,
        a & 0xFFFF,
        b >> 48,
        b & 0xFFFF_FFFF_FFFF
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_fill_the_unit_interval_evenly() {
        let mean = (0..10_000).map(|i| fraction(7, i)).sum::<f64>() / 10_000.0;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
        assert!((0..10_000).all(|i| (0.0..1.0).contains(&fraction(7, i))));
    }

    #[test]
    fn a_uuid_has_its_form_and_differs() {
        assert_eq!(uuid(1).len(), 36);
        assert_ne!(uuid(1), uuid(2));
        assert_eq!(uuid(1), uuid(1));
    }
}
