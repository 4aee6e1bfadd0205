//! Packets that arrived together. In: a receiver's frames. Out: packets, one at a time, or lent to others.

use std::borrow::Cow;

use super::memory::Frame;
use super::packet::Packet;
use super::pool::Pool;
use super::receiver::Receiver;

/// Packets that arrived together. What is not kept goes back to the pool when the batch ends.
pub struct Batch<'a> {
    receiver: &'a mut Receiver,
    next: usize,
}

impl<'a> Batch<'a> {
    pub(super) fn new(receiver: &'a mut Receiver) -> Self {
        Self { receiver, next: 0 }
    }

    /// The next packet.
    #[expect(clippy::should_implement_trait, reason = "a packet is lent until the next one is asked for")]
    pub fn next(&mut self) -> Option<Received<'_>> {
        let frames = self.receiver.frames.get(self.next..)?;
        let end = frames.iter().position(|frame| !frame.has_more())? + 1;
        let start = self.next;
        self.next += end;
        Some(Received { pool: &self.receiver.pool, frames: &self.receiver.frames[start..self.next] })
    }

    /// Whether nothing arrived.
    pub fn is_empty(&self) -> bool {
        self.receiver.frames.is_empty()
    }

    /// Lends the rest of the packets to whoever `give` hands them to, without a copy; returns how many.
    pub fn lend(self, mut give: impl FnMut(Packet)) -> u64 {
        let mut lent = 0;
        let rest = self.receiver.frames.split_off(self.next);
        self.receiver.count_taken(&rest);
        let mut packet = Vec::new();
        for frame in rest {
            let more = frame.has_more();
            packet.push(frame);
            if !more {
                lent += 1;
                give(self.receiver.pool.lend(packet.drain(..)));
            }
        }
        self.receiver.free_all(packet);
        lent
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        let mut frames = std::mem::take(&mut self.receiver.frames);
        self.receiver.count_taken(&frames);
        self.receiver.pool.free_all(&mut frames);
        self.receiver.put_back(frames);
    }
}

/// A packet in its worker's hands.
pub struct Received<'a> {
    pool: &'a Pool,
    frames: &'a [Frame],
}

impl<'a> Received<'a> {
    /// Bytes.
    pub fn len(&self) -> usize {
        self.frames.iter().map(Frame::len).sum()
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its pieces, in order.
    pub fn pieces(&self) -> impl Iterator<Item = &'a [u8]> {
        let pool = self.pool;
        self.frames.iter().map(move |frame| pool.bytes(frame))
    }

    /// Its bytes in one piece; a copy when it is in several.
    pub fn bytes(&self) -> Cow<'a, [u8]> {
        match self.frames {
            [only] => Cow::Borrowed(self.pool.bytes(only)),
            several => Cow::Owned(several.iter().flat_map(|frame| self.pool.bytes(frame)).copied().collect()),
        }
    }
}
