//! JSON values as YAML. Every string is quoted as in JSON, which YAML reads in the same way.

use serde_json::Value;

/// A document.
pub(super) fn text(value: &Value) -> String {
    lines(value).join("\n") + "\n"
}

fn lines(value: &Value) -> Vec<String> {
    match value {
        Value::Object(fields) if is_block(value) => {
            fields.iter().flat_map(|(name, value)| field(name, value)).collect()
        }
        Value::Array(items) if is_block(value) => items.iter().flat_map(|item| behind("- ", lines(item))).collect(),
        other => vec![other.to_string()],
    }
}

/// A field, whose value begins on the next line if it is a block.
fn field(name: &str, value: &Value) -> Vec<String> {
    if !is_block(value) {
        return vec![format!("{name}: {value}")];
    }
    std::iter::once(format!("{name}:")).chain(behind("  ", lines(value))).collect()
}

/// Whether the value takes lines of its own.
fn is_block(value: &Value) -> bool {
    value.as_object().is_some_and(|fields| !fields.is_empty())
        || value.as_array().is_some_and(|items| !items.is_empty())
}

/// The first line behind this text, and the others as far to the right.
fn behind(first: &'static str, lines: Vec<String>) -> impl Iterator<Item = String> {
    lines.into_iter().enumerate().map(move |(index, line)| format!("{}{line}", if index == 0 { first } else { "  " }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let value = serde_json::json!({
            "a": [], "b": {}, "c": null, "d": [{"x": 1, "y": {"z": [1.25, "no", "- a: b\n\u{1b}\"#"]}}, {"x": 2}],
            "e": "yes", "f": true, "g": 18_000_000_000_000_u64,
        });
        let read: Value = serde_saphyr::from_str(&text(&value)).unwrap();
        assert_eq!(read, value, "{}", text(&value));
        assert_eq!(text(&serde_json::json!({"a": [{"b": 1, "c": ["d"]}]})), "a:\n  - b: 1\n    c:\n      - \"d\"\n");
    }
}
