//! A strict client: it accepts only complete responses of the stated length, and pages that use only known tags.

/// One response.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) body: Vec<u8>,
}

/// Splits the received bytes into responses. Panics on anything else and on a partial response.
///
/// A client that requests an upgrade or a tunnel may lose the end of the last response: hyper closes the connection
/// when the request is complete, whether or not the response has been sent.
pub(super) fn read(received: &[u8], sent: &[u8]) -> Vec<Response> {
    let upgrades = sent.windows(7).any(|word| word.eq_ignore_ascii_case(b"upgrade") || word == b"CONNECT");
    let (mut rest, mut responses) = (received, Vec::new());
    while !rest.is_empty() {
        let (response, after) = match one(rest) {
            Ok(read) => read,
            Err(_) if upgrades => break,
            Err(why) => panic!("{why}: {}\nto {}", rest.escape_ascii(), sent.escape_ascii()),
        };
        rest = after;
        // An interim response is followed by another response.
        if response.status >= 200 {
            responses.push(response);
        }
    }
    responses
}

fn one(text: &[u8]) -> Result<(Response, &[u8]), String> {
    let end = text.windows(4).position(|window| window == b"\r\n\r\n").ok_or("no end of the head")?;
    let head = std::str::from_utf8(&text[..end]).map_err(|_| "a head that is not text")?;
    let mut lines = head.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let version = first.strip_prefix("HTTP/1.1 ").or_else(|| first.strip_prefix("HTTP/1.0 ")).ok_or("no version")?;
    let status: u16 = version.get(..3).and_then(|status| status.parse().ok()).ok_or("no status")?;
    let (mut length, mut chunked) = (None, false);
    for line in lines {
        let (name, value) = line.split_once(": ").ok_or("a header without a value")?;
        if line.contains(|c: char| c.is_control()) {
            return Err("a control character in a header".to_owned());
        }
        match name.to_ascii_lowercase().as_str() {
            "content-length" if length.is_some() => return Err("two lengths".to_owned()),
            "content-length" => length = Some(value.parse::<usize>().map_err(|_| "a length that is not a number")?),
            "transfer-encoding" => chunked = value == "chunked",
            _ => {}
        }
    }
    let rest = &text[end + 4..];
    if chunked {
        if length.is_some() {
            return Err("a length beside chunks".to_owned());
        }
        let (body, rest) = chunks(rest)?;
        return Ok((Response { status, body }, rest));
    }
    match length {
        _ if status < 200 || status == 204 || status == 304 => Ok((Response { status, body: Vec::new() }, rest)),
        // A response to HEAD has a length and no body, so either another response or nothing follows.
        Some(_) if rest.is_empty() || rest.starts_with(b"HTTP/1.") => Ok((Response { status, body: Vec::new() }, rest)),
        Some(length) => {
            let (body, rest) = rest.split_at_checked(length).ok_or("cut short")?;
            Ok((Response { status, body: body.to_vec() }, rest))
        }
        None => Ok((Response { status, body: rest.to_vec() }, &[])),
    }
}

fn chunks(mut text: &[u8]) -> Result<(Vec<u8>, &[u8]), String> {
    // A response to HEAD has no chunks.
    if text.is_empty() || text.starts_with(b"HTTP/1.") {
        return Ok((Vec::new(), text));
    }
    let mut body = Vec::new();
    loop {
        let end = text.windows(2).position(|window| window == b"\r\n").ok_or("no end of a chunk's size")?;
        let size = std::str::from_utf8(&text[..end]).ok().and_then(|size| usize::from_str_radix(size, 16).ok());
        let size = size.ok_or("no chunk's size")?;
        let (chunk, rest) = text[end + 2..].split_at_checked(size).ok_or("a chunk cut short")?;
        text = rest.strip_prefix(b"\r\n").ok_or("no end of a chunk")?;
        if size == 0 {
            return Ok((body, text));
        }
        body.extend_from_slice(chunk);
    }
}

/// The tags of a page outside its tables, except for that of its type.
const TAGS: &str = "
    html /html head /head meta link title /title noscript /noscript body /body div /div header /header h1 /h1 span
    /span nav /nav a /a main /main p /p footer /footer code /code svg /svg
";
/// The tags of its tables and charts.
const TABLE: &str = "table /table thead /thead tbody /tbody tr /tr th /th td /td ul /ul li /li rect line";

/// The page's script. The page must not contain any other.
const SCRIPT: &str = "<script type=\"module\" src=\"/page.js\"></script>";

/// The page contains only its own tags, without scripts in attributes, and each ampersand begins an escape.
pub(super) fn assert_tags(page: &str) {
    let (before, after) = page.split_once(SCRIPT).expect("the page has its script");
    let rest = format!("{before}{after}");
    for piece in rest.split('<').skip(1) {
        let (tag, text) = piece.split_once('>').unwrap_or_else(|| panic!("no end of <{piece}"));
        let name = tag.split(' ').next().unwrap_or_default();
        let known = [TAGS, TABLE].iter().any(|list| list.split_ascii_whitespace().any(|known| known == name));
        assert!(tag == "!DOCTYPE html" || known, "<{tag}>");
        assert!(!tag.to_ascii_lowercase().contains(" on") && !tag.contains("javascript:"), "<{tag}>");
        assert_eq!(tag.matches('"').count() % 2, 0, "<{tag}>");
        assert!(!text.contains(['>', '"', '\'']) && !text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    }
    for (at, _) in rest.match_indices('&') {
        let known = ["&amp;", "&lt;", "&gt;", "&quot;", "&#39;"].iter().any(|escape| rest[at..].starts_with(escape));
        assert!(known, "a bare ampersand at {at}");
    }
}
