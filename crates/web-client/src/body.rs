//! The body of an answer.

use std::error::Error as StdError;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Bytes, Frame, Incoming, SizeHint};
use tokio::task::JoinSet;

use super::error::Error;
use super::meter::Allowance;

/// The body of an answer, with its connection, which ends with it.
#[derive(Debug)]
pub struct Body {
    incoming: Incoming,
    allowance: Allowance,
    _connection: JoinSet<hyper::Result<()>>,
}

impl Body {
    pub(super) fn new(incoming: Incoming, allowance: Allowance, connection: JoinSet<hyper::Result<()>>) -> Self {
        Self { incoming, allowance, _connection: connection }
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(context));
        if let Some(Ok(frame)) = &frame {
            self.allowance.renew(frame.data_ref().map_or(0, Bytes::len));
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

/// Reads a body to its end, into one piece of memory, however small the pieces are in which it arrives.
///
/// # Errors
/// When it is longer than `limit` bytes, or its connection fails.
pub async fn whole<B>(body: B, limit: usize) -> Result<Bytes, Error>
where
    B: HttpBody<Data = Bytes, Error: Into<Box<dyn StdError + Send + Sync>>>,
{
    if body.size_hint().lower() > limit as u64 {
        return Err(Error::TooLong(limit));
    }
    let mut content = Vec::new();
    let mut body = pin!(body);
    while let Some(frame) = body.frame().await {
        let data = frame.map_err(|error| Error::Transport(error.into()))?.into_data().unwrap_or_default();
        if content.len() + data.len() > limit {
            return Err(Error::TooLong(limit));
        }
        content.extend_from_slice(&data);
    }
    Ok(content.into())
}
