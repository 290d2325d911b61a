//! A second implementation of the patterns: `*` (any characters), `?` (one character), `[ab]`, `[a-b]` and `[!ab]` (one
//! character that is, or is not, one of these).

/// A pattern.
pub(super) struct Glob(Vec<Token>);

/// Whether a character is one of those that a token allows.
type Test = Box<dyn Fn(char) -> bool>;

enum Token {
    /// `*`
    Any,
    /// Exactly one character, for which the test is true.
    One(Test),
}

impl Glob {
    /// Reads a pattern that the configuration has accepted.
    pub(super) fn of(text: &str) -> Self {
        let mut tokens = Vec::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            rest = &rest[first.len_utf8()..];
            tokens.push(match first {
                '*' => Token::Any,
                '?' => Token::One(Box::new(|_| true)),
                '[' => {
                    let (class, after) = class(rest).unwrap_or_else(|| panic!("no closing bracket in {text:?}"));
                    rest = after;
                    Token::One(class)
                }
                _ => Token::One(Box::new(move |c| c == first)),
            });
        }
        Self(tokens)
    }

    /// Whether the pattern matches the whole name.
    pub(super) fn matches(&self, name: &str) -> bool {
        let name: Vec<char> = name.chars().collect();
        // For each length, whether the tokens so far match that many characters.
        let mut matched = vec![false; name.len() + 1];
        matched[0] = true;
        for token in &self.0 {
            match token {
                Token::Any => {
                    let first = matched.iter().position(|matched| *matched).unwrap_or(matched.len());
                    matched[first..].fill(true);
                }
                Token::One(test) => {
                    matched.rotate_right(1);
                    matched[0] = false;
                    name.iter().zip(&mut matched[1..]).for_each(|(c, matched)| *matched &= test(*c));
                }
            }
        }
        matched[name.len()]
    }
}

/// The test for the characters between brackets, and what follows the closing bracket. A closing bracket that comes
/// first is one of the characters.
fn class(text: &str) -> Option<(Test, &str)> {
    let (negated, text) = text.strip_prefix('!').map_or((false, text), |text| (true, text));
    let first = text.chars().next()?.len_utf8();
    let end = first + text[first..].find(']')?;
    let (mut ranges, mut rest) = (Vec::new(), text[..end].chars().collect::<Vec<_>>());
    while !rest.is_empty() {
        let (from, to, length) =
            if rest.len() >= 3 && rest[1] == '-' { (rest[0], rest[2], 3) } else { (rest[0], rest[0], 1) };
        ranges.push(from..=to);
        rest.drain(..length);
    }
    Some((Box::new(move |c| ranges.iter().any(|range| range.contains(&c)) != negated), &text[end + 1..]))
}
