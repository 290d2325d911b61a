//! A body that ends in an error rather than without end.
//!
//! Invariant: what reads it never has to hold more than the limit at once. kube collects an answer whole, and a watch
//! line by line, and bounds neither.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, SizeHint};
use kube::client::DynBody;
use tokio::time::{Instant, Sleep};
use tower::BoxError;

use super::error::{Error, innermost};

/// Most bytes of an answer that is read whole. Five hundred pods are some 8 MiB. Decoded, an answer made to be large can
/// take ten times its length.
pub(super) const ANSWER_LIMIT: usize = 16 << 20;
/// Most bytes of one line of a watch. An object of Kubernetes has up to some 2 MiB.
pub(super) const LINE_LIMIT: usize = 8 << 20;

/// The body of an answer, within bounds.
pub(super) struct Bounded {
    inner: Box<DynBody>,
    /// What was read of the answer, or of the line so far.
    read: usize,
    bounds: Bounds,
}

enum Bounds {
    /// A watch: lines without end, each of a bounded length.
    Lines,
    /// An answer that has an end, and by a given time.
    Whole { limit: Duration, late: Pin<Box<Sleep>> },
}

impl Bounded {
    /// A watch's body.
    pub(super) fn lines(inner: Box<DynBody>) -> Self {
        Self { inner, read: 0, bounds: Bounds::Lines }
    }

    /// The body of an answer that is read whole. `limit` is the time between the question and the deadline.
    pub(super) fn whole(inner: Box<DynBody>, deadline: Instant, limit: Duration) -> Self {
        let late = Box::pin(tokio::time::sleep_until(deadline));
        Self { inner, read: 0, bounds: Bounds::Whole { limit, late } }
    }

    fn count(&mut self, data: &[u8]) -> Result<(), Error> {
        let longest = match self.bounds {
            Bounds::Whole { .. } => {
                self.read += data.len();
                ANSWER_LIMIT
            }
            Bounds::Lines => {
                // Lines that begin and end within one piece are as short as the piece.
                let first = data.iter().position(|&byte| byte == b'\n');
                if self.read + first.unwrap_or(0) > LINE_LIMIT {
                    return Err(Error::TooLong(LINE_LIMIT));
                }
                let rest = data.iter().rposition(|&byte| byte == b'\n').map(|end| data.len() - end - 1);
                self.read = rest.unwrap_or(self.read + data.len());
                LINE_LIMIT
            }
        };
        if self.read > longest { Err(Error::TooLong(longest)) } else { Ok(()) }
    }
}

impl Body for Bounded {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Bounds::Whole { limit, late } = &mut self.bounds
            && late.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Some(Err(Error::Timeout(*limit).into())));
        }
        let frame = std::task::ready!(Pin::new(&mut *self.inner).poll_frame(cx));
        let counted = match &frame {
            Some(Ok(frame)) => frame.data_ref().map_or(Ok(()), |data| self.count(data)),
            // The server was there and has worked: it is not asked for all of it again as soon as one that is not there.
            Some(Err(error)) if matches!(self.bounds, Bounds::Whole { .. }) => {
                Err(Error::Connection(innermost(&**error)))
            }
            _ => Ok(()),
        };
        Poll::Ready(counted.map_or_else(|error| Some(Err(error.into())), |()| frame))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nothing;

    impl Body for Nothing {
        type Data = Bytes;
        type Error = BoxError;

        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            Poll::Ready(None)
        }
    }

    #[test]
    fn a_watch_may_be_long_and_a_line_may_not() {
        let mut body = Bounded::lines(Box::new(Nothing));
        let mut piece = vec![b'x'; LINE_LIMIT / 4];
        piece[LINE_LIMIT / 8] = b'\n';
        assert!((0..100).all(|_| body.count(&piece).is_ok()));
        let bare = vec![b'x'; LINE_LIMIT / 4];
        let taken = (0..100).take_while(|_| body.count(&bare).is_ok()).count();
        assert_eq!(taken, 3, "an eighth was already there");
    }

    #[test]
    fn the_end_of_a_long_line_does_not_excuse_it() {
        let mut body = Bounded::lines(Box::new(Nothing));
        body.count(&vec![b'x'; LINE_LIMIT]).unwrap();
        assert!(matches!(body.count(b"x\n"), Err(Error::TooLong(LINE_LIMIT))));
    }

    #[tokio::test]
    async fn an_answer_is_counted_over_all_its_lines() {
        let mut body =
            Bounded::whole(Box::new(Nothing), Instant::now() + Duration::from_secs(1), Duration::from_secs(1));
        let piece = vec![b'\n'; ANSWER_LIMIT / 4];
        assert_eq!((0..100).take_while(|_| body.count(&piece).is_ok()).count(), 4);
    }
}
