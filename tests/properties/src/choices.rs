//! Bytes read as choices, so that inputs get past the first lines of a parser.

pub use arbitrary::Unstructured;

/// The lowest first byte of an input that is read as choices. An input with a lower first byte is used as is.
pub const CHOICES: u8 = 0x80;

/// The choices after the first byte if that byte is at least [`CHOICES`]; otherwise `None`.
pub(crate) fn choices(data: &[u8]) -> Option<Unstructured<'_>> {
    let (first, rest) = data.split_first()?;
    (*first >= CHOICES).then(|| Unstructured::new(rest))
}

/// [`Unstructured`] without its errors: no list here is empty, and once the bytes run out, every choice is the first.
pub(crate) trait Choose<'a> {
    /// The next byte; 0 at the end.
    fn byte(&mut self) -> u8;
    /// A number below `end`.
    fn below(&mut self, end: usize) -> usize;
    /// True in one case out of `odds`, and false once the bytes run out.
    fn once_in(&mut self, odds: usize) -> bool;
    /// One element of a list.
    fn pick<T: Copy>(&mut self, list: &[T]) -> T;
    /// One word of a list whose words are separated by white space.
    fn word<'w>(&mut self, list: &'w str) -> &'w str;
    /// Up to `most` bytes.
    fn up_to(&mut self, most: usize) -> &'a [u8];
    /// [`Choose::up_to`] as text; bytes that are not UTF-8 are replaced.
    fn text(&mut self, most: usize) -> String;
    /// A number of any size: a small one, a bound of an integer type, or any other.
    fn number(&mut self) -> u64;
}

impl<'a> Choose<'a> for Unstructured<'a> {
    fn byte(&mut self) -> u8 {
        self.arbitrary().expect("an integer needs no bytes")
    }

    fn below(&mut self, end: usize) -> usize {
        self.choose_index(end).expect("no range here is empty")
    }

    fn once_in(&mut self, odds: usize) -> bool {
        self.below(odds) == odds - 1
    }

    fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        *self.choose(list).expect("no list here is empty")
    }

    fn word<'w>(&mut self, list: &'w str) -> &'w str {
        let words: Vec<&str> = list.split_ascii_whitespace().collect();
        self.pick(&words)
    }

    fn up_to(&mut self, most: usize) -> &'a [u8] {
        let length = self.below(most + 1).min(self.len());
        self.bytes(length).expect("that many bytes are left")
    }

    fn text(&mut self, most: usize) -> String {
        String::from_utf8_lossy(self.up_to(most)).into_owned()
    }

    fn number(&mut self) -> u64 {
        const BOUNDS: [u64; 8] = [0, 1, 2, 1000, u32::MAX as u64, i64::MAX as u64, i64::MAX as u64 + 1, u64::MAX];
        match self.below(4) {
            0 => u64::from(self.byte()),
            1 => self.pick(&BOUNDS),
            _ => self.arbitrary().expect("an integer needs no bytes"),
        }
    }
}
