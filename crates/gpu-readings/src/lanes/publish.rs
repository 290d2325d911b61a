//! How a lane publishes: it fills a part of the snapshot that is not in use and swaps it in as a whole.

use std::sync::Arc;

use arc_swap::ArcSwap;

/// Keeps the previously published part for reuse, so that in the steady state publishing allocates nothing.
#[derive(Debug)]
pub(super) struct Publisher<T> {
    spare: Option<Arc<T>>,
}

impl<T> Default for Publisher<T> {
    fn default() -> Self {
        Self { spare: None }
    }
}

impl<T: Default> Publisher<T> {
    /// Fills a part, which may hold values published earlier, and swaps it in. A part that a reader still holds is not
    /// reused.
    pub(super) fn publish(&mut self, slot: &ArcSwap<T>, fill: impl FnOnce(&mut T)) {
        let mut next = self.spare.take().unwrap_or_default();
        if Arc::get_mut(&mut next).is_none() {
            next = Arc::default();
        }
        fill(Arc::get_mut(&mut next).expect("the part has one holder: it was just made or just checked"));
        self.spare = Some(slot.swap(next));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_keeps_what_it_took() {
        let slot = ArcSwap::from_pointee(vec![0]);
        let mut publisher = Publisher::default();
        publisher.publish(&slot, |part: &mut Vec<i32>| *part = vec![1]);
        let held = slot.load_full();
        for value in 2..6 {
            publisher.publish(&slot, |part| *part = vec![value]);
        }
        assert_eq!(*held, [1]);
        assert_eq!(**slot.load(), [5]);
    }
}
