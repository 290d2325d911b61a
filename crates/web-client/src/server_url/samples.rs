//! Samples for the tests of programs that read URLs.

/// Texts that name no port of a host without doubt; every place that reads a URL refuses them.
#[rustfmt::skip]
pub const REFUSED: [&str; 44] = [
    // nothing, or no scheme that is known
    "", "//a", "a", "a:80", "ftp://a", "HTTP://a", "http:/a",
    // no host
    "http://", "https://", "http:///", "https:///v1", "http://:80",
    // white space
    " http://a", "http://a ", "http://a\n", "http://a b",
    // a port in another form than 1 to 65535
    "http://a:", "http://a:/", "http://a:0", "http://a:00080", "http://a:080", "http://a:+80", "http://a:-1",
    "http://a:65536", "http://a:99999", "http://a:4294967376", "http://a:8O", "http://a:80:80", "http://a:80x",
    // an address in a form that is read in several ways
    "http://[::1", "http://::1", "http://[::1]x", "http://[::1%25eth0]:80", "http://[a]:80", "http://1.2.3",
    "http://127.1:80", "http://0177.0.0.1", "http://0x7f.1", "http://2130706433", "http://256.1.1.1",
    // no name of a host
    "http://a..b", "http://-a.b\u{e9}", "http://a\\b", "http://%61",
];

/// Texts with something that could be secret.
pub const SECRET: [&str; 8] = [
    "https://user:s3cr3t@a",
    "https://s3cr3t@a:80",
    "https://user:s3/cr3t@a",
    "https://a/?key=s3cr3t",
    "https://a?s3cr3t",
    "https://a/#s3cr3t",
    "https://a#s3cr3t",
    "https://user:s3cr3t%40a",
];
