//! What hostile bytes are made into for a trial, and how a test drives one.
//!
//! A trial is a function of bytes that asserts what must hold whatever they are. It stands beside the code that it tries,
//! in `trials.rs` of that room, and is driven twice: by `cargo test` over the seeds, the kept cases and a fixed
//! number of generated inputs, and by `cargo fuzz` for as long as one likes.
//!
//! Invariant: the same bytes always make the same trial.

// Named by its path, because the simulator reads this file from another place.
#[cfg(test)]
#[path = "trials/drive.rs"]
mod drive;

#[cfg(test)]
pub(crate) use drive::drive;

/// The first byte of an input that chooses [`Pieces`]; any lower one leaves the input as it is.
pub const PIECES: u8 = 0x80;

/// Bytes read as choices, so that inputs get through the first lines of a parser. At the end every choice is the first.
#[derive(Debug)]
pub struct Pieces<'a> {
    left: &'a [u8],
}

impl<'a> Pieces<'a> {
    /// The choices that stand behind the first byte, where that byte asks for choices; else `None`.
    pub fn of(data: &'a [u8]) -> Option<Self> {
        let (first, left) = data.split_first()?;
        (*first >= PIECES).then_some(Self { left })
    }

    /// Whether no byte is left.
    pub fn is_empty(&self) -> bool {
        self.left.is_empty()
    }

    /// The next byte; 0 at the end.
    pub fn byte(&mut self) -> u8 {
        let Some((first, left)) = self.left.split_first() else { return 0 };
        self.left = left;
        *first
    }

    /// A number below `end`, which is 256 at most.
    pub fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }

    /// True once in `odds` bytes.
    pub fn once_in(&mut self, odds: usize) -> bool {
        self.below(odds) == odds - 1
    }

    /// One of a list.
    pub fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())]
    }

    /// Up to `most` bytes: a byte says how many, and they follow.
    pub fn bytes(&mut self, most: usize) -> &'a [u8] {
        let length = self.below(most + 1).min(self.left.len());
        let (bytes, left) = self.left.split_at(length);
        self.left = left;
        bytes
    }

    /// [`Pieces::bytes`] as text; what is no UTF-8 is replaced.
    pub fn text(&mut self, most: usize) -> String {
        String::from_utf8_lossy(self.bytes(most)).into_owned()
    }

    /// A number of any size: small ones, bounds and any others.
    pub fn number(&mut self) -> u64 {
        const BOUNDS: [u64; 8] = [0, 1, 2, 1000, u32::MAX as u64, i64::MAX as u64, i64::MAX as u64 + 1, u64::MAX];
        match self.below(4) {
            0 => u64::from(self.byte()),
            1 => self.pick(&BOUNDS),
            _ => (0..8).fold(0, |number, _| number << 8 | u64::from(self.byte())),
        }
    }
}
