//! A packet that left its worker. In: frames. Out: bytes, on any thread, without a copy where it is in one piece.

use std::sync::Arc;

use bytes::Bytes;
use crossbeam_queue::ArrayQueue;

use super::memory::{Frame, Memory};

/// Where lent buffers belong.
pub(super) struct Home {
    pub(super) memory: Memory,
    /// Buffers that came back; as long as the pool, so that each finds room.
    pub(super) returned: ArrayQueue<Frame>,
}

/// A packet that left its worker. Dropped, its buffers go back.
pub struct Packet {
    home: Arc<Home>,
    first: Option<Frame>,
    rest: Vec<Frame>,
}

impl Packet {
    pub(super) fn new(home: Arc<Home>, frames: impl IntoIterator<Item = Frame>) -> Self {
        let mut frames = frames.into_iter();
        let first = frames.next();
        Self { home, first, rest: frames.collect() }
    }

    /// Its pieces, in order. One, unless it is longer than a buffer.
    pub fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        self.first.iter().chain(&self.rest).map(|frame| self.home.memory.bytes(frame))
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.first.iter().chain(&self.rest).map(Frame::len).sum()
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its bytes in one piece: the buffer itself, held until the last reader is gone, or a copy of several.
    pub fn into_bytes(self) -> Bytes {
        if self.rest.is_empty() {
            return Bytes::from_owner(self);
        }
        let mut whole = Vec::with_capacity(self.len());
        self.pieces().for_each(|piece| whole.extend_from_slice(piece));
        whole.into()
    }
}

/// The first piece.
impl AsRef<[u8]> for Packet {
    fn as_ref(&self) -> &[u8] {
        self.first.as_ref().map_or(&[], |frame| self.home.memory.bytes(frame))
    }
}

impl Drop for Packet {
    fn drop(&mut self) {
        for frame in self.first.take().into_iter().chain(self.rest.drain(..)) {
            // There is room for every buffer of the pool.
            let _ = self.home.returned.push(frame);
        }
    }
}
