//! Texts that contain a list that is declared elsewhere, joined by the compiler: HELP is a `&'static str`.

/// Bytes that are enough for a text.
const ROOM: usize = 2048;

/// A text and its length.
pub(super) type Text = ([u8; ROOM], usize);

/// The groups, one after the other; within a group, a comma and a space are between two texts.
pub(super) const fn bytes(groups: &[&[&str]]) -> Text {
    let (mut all, mut length) = ([0; ROOM], 0);
    let mut group = 0;
    while group < groups.len() {
        let mut text = 0;
        while text < groups[group].len() {
            if text > 0 {
                (all, length) = with(all, length, b", ");
            }
            (all, length) = with(all, length, groups[group][text].as_bytes());
            text += 1;
        }
        group += 1;
    }
    (all, length)
}

const fn with(mut all: [u8; ROOM], length: usize, text: &[u8]) -> Text {
    all.split_at_mut(length).1.split_at_mut(text.len()).0.copy_from_slice(text);
    (all, length + text.len())
}

/// Joins groups of texts as [`bytes`] does: `joined!(["One of "], NAMES, ["."])`.
macro_rules! joined {
    ($($group:expr),+ $(,)?) => {{
        const TEXT: $crate::joined::Text = $crate::joined::bytes(&[$(&$group),+]);
        match std::str::from_utf8(TEXT.0.split_at(TEXT.1).0) {
            Ok(text) => text,
            Err(_) => unreachable!(),
        }
    }};
}
pub(super) use joined;
