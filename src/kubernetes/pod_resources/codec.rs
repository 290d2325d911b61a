//! Lets the generated client read answers in place.

use std::marker::PhantomData;
use std::sync::Arc;

use prost::Message;
use prost::bytes::Buf as _;
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder};
use tonic_prost::ProstEncoder;

use super::answer::Answer;

/// The room in which tonic collects an answer, in bytes. Only what an answer fills becomes memory; and glibc gives a block
/// beyond 32 MiB back to the system at once, where it would keep a smaller one for each thread after a large answer.
const ROOM: usize = 33 << 20;
/// When tonic pauses in writing: a question is a few bytes.
const PAUSE: usize = 32 << 10;

/// Questions are written by prost, answers are read by [`Answer`].
#[derive(Debug)]
pub(super) struct InPlace<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for InPlace<T, U> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T: Message + Send + 'static, U: Answer + Send + 'static> Codec for InPlace<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = ProstEncoder<T>;
    type Decoder = Reader<U>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::default()
    }

    fn decoder(&mut self) -> Self::Decoder {
        Reader(PhantomData)
    }
}

/// Reads one kind of answer.
#[derive(Debug)]
pub(super) struct Reader<U>(PhantomData<U>);

impl<U: Answer + Send + 'static> Decoder for Reader<U> {
    type Item = U;
    type Error = Status;

    fn decode(&mut self, message: &mut DecodeBuf<'_>) -> Result<Option<U>, Status> {
        // No copy: tonic hands over the buffer in which it collected the message.
        let message = message.copy_to_bytes(message.remaining());
        U::read(&message).map(Some).map_err(|malformed| {
            let mut status = Status::internal(malformed.to_string());
            status.set_source(Arc::new(malformed));
            status
        })
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(ROOM, PAUSE)
    }
}
