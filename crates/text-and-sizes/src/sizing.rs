//! What fits where: boards, MIG profiles, and how much more than its peak a workload should request.

pub mod boards;

/// Percent of the peak that a request has in addition, because another input can need more.
pub const MARGIN: u64 = 15;

/// The bytes to request for a workload with this peak on a device with this many bytes (0: unknown): the peak and the margin,
/// rounded up. `None` if that is more than the device has.
pub fn request(peak: u64, allocatable: u64) -> Option<u64> {
    Some(with_margin(peak)).filter(|bytes| allocatable == 0 || *bytes <= allocatable)
}

/// The peak and the margin, rounded up.
pub fn with_margin(peak: u64) -> u64 {
    let bytes = (u128::from(peak) * u128::from(100 + MARGIN)).div_ceil(100);
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

/// The sum of the needs of as many processes as are there at once, those that need most. Afterwards, the needs are sorted, highest
/// first.
pub fn largest_at_once(needs: &mut [u64], at_once: usize) -> u64 {
    needs.sort_unstable_by(|a, b| b.cmp(a));
    needs.iter().take(at_once).fold(0, |sum: u64, need| sum.saturating_add(*need))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_the_peak_and_a_margin_rounded_up_and_never_more_than_the_device() {
        assert_eq!(request(100, 0), Some(115));
        assert_eq!(request(101, 117), Some(117));
        assert_eq!(request(101, 116), None);
        assert_eq!(request(0, 0), Some(0));
        assert_eq!(request(u64::MAX, 0), Some(u64::MAX));
    }
}
