//! Lists of the form `name=value,name=value`, in which OpenTelemetry's variables hold headers and attributes.

use percent_encoding::percent_decode_str;

/// Reads a list, with its values decoded.
///
/// # Errors
/// When a member has no name or no equals sign, or a value is not UTF-8. The error says which member, and does not quote
/// it.
pub(super) fn read(list: &str) -> Result<Vec<(String, String)>, String> {
    let members = list.split(',').enumerate().filter(|(_, member)| !member.trim().is_empty());
    let read = |(index, member): (usize, &str)| {
        let wrong = || format!("member {} is not of the form name=value", index + 1);
        let (name, value) = member.split_once('=').ok_or_else(wrong)?;
        let decoded = |text: &str| percent_decode_str(text.trim()).decode_utf8().map(|text| text.into_owned());
        let (name, value) = (decoded(name).map_err(|_| wrong())?, decoded(value).map_err(|_| wrong())?);
        if name.is_empty() { Err(wrong()) } else { Ok((name, value)) }
    };
    members.map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_decoded_and_white_space_around_them_is_dropped() {
        let list = read("api-key=a%3Db%2C, X-Scope-OrgID = team ,,a=").unwrap();
        let expected = [("api-key", "a=b,"), ("X-Scope-OrgID", "team"), ("a", "")];
        assert_eq!(list, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(read("").unwrap(), []);
    }

    #[test]
    fn an_error_does_not_quote_the_secret() {
        for bad in ["secret", "a=b,secret", "=secret", "a=secret%ff"] {
            let error = read(bad).unwrap_err();
            assert!(error.starts_with("member ") && !error.contains("secret"), "{error}");
        }
    }
}
