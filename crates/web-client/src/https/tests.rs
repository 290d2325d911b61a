//! What a server may do, and what ends its connection.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

use super::super::{innermost, whole};
use super::*;

/// More than a server may make a client read, with the buffers of the system and the test's own.
const FLOOD: usize = 64 << 20;
const LIMIT: usize = 16 << 20;

/// A server that reads a request, writes `first`, and then `again` until the client closes the connection, at most
/// [`FLOOD`] bytes. Returns how many bytes of these it could write.
fn server(first: &'static [u8], again: &'static [u8]) -> (ServerUrl, JoinHandle<usize>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = std::thread::spawn(move || {
        let mut stream = request(&listener);
        let pieces = if again.len() < 8 { again.to_vec() } else { again.repeat(1 + 4096 / again.len()) };
        stream.set_nodelay(true).unwrap();
        let mut written = 0;
        if stream.write_all(first).is_ok() {
            while !again.is_empty() && written < FLOOD && stream.write_all(&pieces).is_ok() {
                written += pieces.len();
            }
        }
        written
    });
    (ServerUrl::parse(&url, "http://a", "a file").unwrap(), serving)
}

fn request(listener: &TcpListener) -> TcpStream {
    let (mut stream, _) = listener.accept().unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.push(byte[0]);
    }
    stream
}

async fn get(server: &ServerUrl) -> Result<Bytes, Error> {
    let connection = Connection::open(server, Tls::trusting(server, None).unwrap()).await?;
    let response = connection.send(Request::get("/").body(Full::default()).unwrap()).await?;
    whole(response.into_body(), LIMIT).await
}

#[tokio::test]
async fn a_server_cannot_make_a_client_read_without_end() {
    let chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    for (what, first, again) in [
        ("interim responses", &b""[..], &b"HTTP/1.1 100 Continue\r\n\r\n"[..]),
        ("early hints with headers", b"", b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"),
        ("interim responses of another kind", b"", b"HTTP/1.1 199 x\r\n\r\n"),
        ("headers", b"HTTP/1.1 200 OK\r\n", b"a: b\r\n"),
        ("one header", b"HTTP/1.1 200 OK\r\na: ", b"bbbbbbbb"),
        ("one header in bytes", b"HTTP/1.1 200 OK\r\na: ", b"b"),
        ("a status line", b"HTTP/1.1 200 ", b"OKOKOKOK"),
        ("empty lines", b"", b"\r\n\r\n\r\n\r\n"),
        ("a chunk's size", chunked, b"00000000"),
        ("a chunk's extension", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1", b";a=bcdef"),
        ("chunks with extensions", chunked, b"1;a=bcdefghijklmnop\r\nx\r\n"),
        ("chunks of a byte", chunked, b"1\r\nx\r\n1\r\nx\r\n"),
        ("trailers", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"a: bcdef\r\n"),
        ("a body in bytes", b"HTTP/1.1 200 OK\r\n\r\n", b"x"),
        ("a body", b"HTTP/1.1 200 OK\r\n\r\n", b"xxxxxxxx"),
        ("a body in chunks", chunked, b"00000010\r\n0123456789abcdef\r\n"),
    ] {
        let (url, serving) = server(first, again);
        let error = get(&url).await.expect_err(what);
        let written = tokio::task::spawn_blocking(|| serving.join().unwrap()).await.unwrap();
        assert!(written < FLOOD, "{what}: {written} bytes were taken");
        assert!(!innermost(&error).is_empty(), "{what}");
    }
}

#[tokio::test]
async fn an_answer_whose_length_is_too_long_is_not_read() {
    let (url, serving) = server(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999\r\n\r\n", b"");
    assert!(matches!(get(&url).await, Err(Error::TooLong(LIMIT))));
    serving.join().unwrap();
}

/// What real servers do: some interim responses, a long body in chunks of any usual size, trailers.
#[tokio::test]
async fn a_usual_answer_is_read_however_long_it_is() {
    const PIECE: usize = 512;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let serving = std::thread::spawn(move || {
        let mut stream = request(&listener);
        stream.set_nodelay(true).unwrap();
        stream.write_all(&b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n".repeat(20)).unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
        let chunk = format!("{PIECE:x}\r\n{}\r\n", "x".repeat(PIECE));
        for _ in 0..LIMIT / PIECE {
            stream.write_all(chunk.as_bytes()).unwrap();
        }
        stream.write_all(b"0\r\nChecksum: abc\r\n\r\n").unwrap();
    });
    let server = ServerUrl::parse(&url, "http://a", "a file").unwrap();
    assert_eq!(get(&server).await.unwrap().len(), LIMIT);
    serving.join().unwrap();
}

#[test]
fn the_wish_to_wait_is_bounded() {
    for (text, seconds) in
        [("7", Some(7)), (" 7 ", Some(7)), ("9999", Some(300)), ("-1", None), ("soon", None), ("", None)]
    {
        let mut headers = HeaderMap::new();
        headers.insert(RETRY_AFTER, text.parse().unwrap());
        assert_eq!(retry_after(&headers), seconds.map(Duration::from_secs), "{text}");
    }
}
