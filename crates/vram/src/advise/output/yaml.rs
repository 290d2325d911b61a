//! JSON values as YAML. Every string is quoted as in JSON, which YAML reads in the same way.

use serde_json::Value;

/// A document.
pub(super) fn text(value: &Value) -> String {
    let mut text = String::new();
    write(&mut text, value, 0, "");
    text
}

/// Writes the value after what is on the line already, which is indented by `depth` levels. `space` is between them.
fn write(text: &mut String, value: &Value, depth: usize, space: &str) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (index, (name, value)) in fields.iter().enumerate() {
                // The first field follows the dash of a list.
                let begin = if index == 0 && space == "- " { "" } else { &indent };
                text.push_str(&format!("{begin}{name}:"));
                if is_block(value) {
                    text.push('\n');
                    write(text, value, depth + 1, "");
                } else {
                    write(text, value, depth + 1, " ");
                }
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                text.push_str(&format!("{indent}- "));
                write(text, item, depth + 1, "- ");
            }
        }
        other => text.push_str(&format!("{}{other}\n", if space == " " { " " } else { "" })),
    }
}

fn is_block(value: &Value) -> bool {
    match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    }
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
