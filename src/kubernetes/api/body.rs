//! Bodies of bounded size: read whole, or line by line.

use std::error::Error as StdError;
use std::io::ErrorKind;

use http_body_util::BodyExt as _;
use hyper::body::{Body, Bytes};

use super::error::Error;
use crate::client::{self, is_io};

/// The longest body that is read whole, in bytes. Five hundred pods take about 8 MiB. A body crafted to be large can
/// occupy ten times as much memory once decoded.
pub(super) const ANSWER_LIMIT: usize = 16 << 20;
/// The longest line of a watch, in bytes. A Kubernetes object is at most about 2 MiB long.
const LINE_LIMIT: usize = 8 << 20;

/// Reads a body of at most `limit` bytes to its end.
pub(super) async fn whole<B>(body: B, limit: usize) -> Result<Bytes, Error>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>>,
{
    client::whole(body, limit).await.map_err(|error| Error::reading(&error))
}

/// The lines of a body that may have no end, up to a number of bytes.
#[derive(Debug)]
pub(super) struct Lines<B> {
    body: B,
    /// The part of the last chunk that has not been used yet.
    chunk: Bytes,
    /// The beginning of the next line.
    line: Vec<u8>,
    /// The most bytes of all lines together.
    limit: usize,
    /// How many more bytes are read.
    left: usize,
}

impl<B: Body<Data = Bytes, Error: StdError + 'static> + Unpin> Lines<B> {
    pub(super) fn new(body: B, limit: usize) -> Self {
        Self { body, chunk: Bytes::new(), line: Vec::new(), limit, left: limit }
    }

    /// The next whole line; `None` at the end. A line that is cut off at the end of the body is dropped.
    pub(super) async fn next(&mut self) -> Result<Option<Vec<u8>>, Error> {
        loop {
            let end = self.chunk.iter().position(|&byte| byte == b'\n');
            let part = self.chunk.split_to(end.map_or(self.chunk.len(), |end| end + 1));
            if self.line.len() + part.len() > LINE_LIMIT {
                return Err(Error::TooLong(LINE_LIMIT));
            }
            self.line.extend_from_slice(&part);
            if end.is_some() {
                return Ok(Some(std::mem::take(&mut self.line)));
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    self.chunk = frame.into_data().unwrap_or_default();
                    self.left = self.left.checked_sub(self.chunk.len()).ok_or(Error::TooLong(self.limit))?;
                }
                // The connection was cut off.
                Some(Err(error)) if is_io(&error, &[ErrorKind::UnexpectedEof]) => return Ok(None),
                Some(Err(error)) => return Err(Error::transport(&error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use futures_util::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;

    fn repeated(chunk: Vec<u8>) -> impl Body<Data = Bytes, Error = io::Error> + Unpin {
        let chunk = Bytes::from(chunk);
        StreamBody::new(stream::repeat_with(move || Ok(Frame::data(chunk.clone()))))
    }

    fn chunks(chunks: &[&[u8]]) -> impl Body<Data = Bytes, Error = io::Error> + Unpin + use<> {
        let frames: Vec<_> = chunks.iter().map(|chunk| Ok(Frame::data(Bytes::copy_from_slice(chunk)))).collect();
        StreamBody::new(stream::iter(frames))
    }

    #[tokio::test]
    async fn a_watch_may_be_long_and_a_line_may_not() {
        let mut piece = vec![b'x'; LINE_LIMIT / 4];
        piece[LINE_LIMIT / 8] = b'\n';
        let mut lines = Lines::new(repeated(piece), usize::MAX);
        for _ in 0..100 {
            assert!(lines.next().await.unwrap().unwrap().len() <= LINE_LIMIT / 4 + 1);
        }
        let mut lines = Lines::new(repeated(vec![b'x'; LINE_LIMIT / 4]), usize::MAX);
        assert!(matches!(lines.next().await, Err(Error::TooLong(LINE_LIMIT))));
        assert!(lines.line.len() <= LINE_LIMIT);
    }

    #[tokio::test]
    async fn a_watch_of_short_lines_is_bounded_too() {
        let mut lines = Lines::new(repeated(b"{}\n".to_vec()), 3000);
        for _ in 0..1000 {
            assert_eq!(lines.next().await.unwrap().unwrap(), b"{}\n");
        }
        assert!(matches!(lines.next().await, Err(Error::TooLong(3000))));
    }

    #[tokio::test]
    async fn the_end_of_a_long_line_does_not_excuse_it() {
        let mut lines = Lines::new(chunks(&[&vec![b'x'; LINE_LIMIT], b"x\n"]), usize::MAX);
        assert!(matches!(lines.next().await, Err(Error::TooLong(LINE_LIMIT))));
    }

    #[tokio::test]
    async fn lines_are_put_together_and_one_that_is_cut_off_is_dropped() {
        let mut lines = Lines::new(chunks(&[b"a", b"b\nc\n", b"", b"\nd", b"e"]), 99);
        for expected in ["ab\n", "c\n", "\n"] {
            assert_eq!(lines.next().await.unwrap().unwrap(), expected.as_bytes());
        }
        assert!(lines.next().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn an_answer_is_counted_over_all_its_lines() {
        let exact = vec![b'\n'; ANSWER_LIMIT / 4];
        assert_eq!(whole(chunks(&[exact.as_slice(); 4]), ANSWER_LIMIT).await.unwrap().len(), ANSWER_LIMIT);
        assert!(matches!(whole(repeated(exact), ANSWER_LIMIT).await, Err(Error::TooLong(ANSWER_LIMIT))));
    }
}
