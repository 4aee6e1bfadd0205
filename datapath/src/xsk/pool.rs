//! The buffers of one worker. In: frames that came back. Out: free ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crossbeam_queue::ArrayQueue;
use podwire_core::wire::ethernet;
use xsk_rs::FrameDesc;

use super::ledger::{Ledger, Place};
use super::memory::{Frame, Memory};
use super::packet::{Home, Packet};
use crate::error::Error;

/// `XDP_PKT_CONTD` of linux/if_xdp.h: the packet goes on in the next buffer.
const CONTINUED: u32 = 1;

/// The buffers of one worker.
pub struct Pool {
    /// Tells pools apart: a frame of another one has no bytes here, and is not taken.
    number: u32,
    home: Arc<Home>,
    free: Vec<Frame>,
    pub(super) ledger: Ledger,
}

impl Pool {
    /// Takes memory for so many buffers of `size` bytes, 2048 or 4096.
    ///
    /// # Errors
    /// [`crate::ErrorKind::Invalid`] when a number is no power of two, [`crate::ErrorKind::PermissionDenied`] when the
    /// process may not lock so much memory or may not open such sockets.
    pub fn take(buffers: u32, size: u32) -> Result<Self, Error> {
        static NUMBERS: AtomicU32 = AtomicU32::new(1);
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let memory = Memory::take(buffers, size)?;
        let free = memory.empty().iter().map(|descriptor| Frame { descriptor: *descriptor, pool: number });
        let free = free.collect();
        let home = Arc::new(Home { memory, returned: ArrayQueue::new(buffers as usize) });
        Ok(Self { number, home, free, ledger: Ledger::new(buffers) })
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Whether a frame is of this pool.
    pub fn owns(&self, frame: &Frame) -> bool {
        frame.pool == self.number
    }

    /// The handle of a descriptor that the kernel gave back.
    pub(super) fn frame(&self, descriptor: FrameDesc) -> Frame {
        Frame { descriptor, pool: self.number }
    }

    /// Takes all buffers back that a socket had to send: it is closed. Returns how many.
    pub(super) fn abandon(&mut self) -> usize {
        let empty: Vec<FrameDesc> = self.memory().empty().to_vec();
        let before = self.free.len();
        for (buffer, descriptor) in empty.into_iter().enumerate() {
            if self.ledger.is_in(buffer, Place::Tx) && self.ledger.shift(buffer, Place::Tx, Place::Free) {
                self.free.push(self.frame(descriptor));
            }
        }
        self.free.len() - before
    }

    pub(super) fn memory(&self) -> &Memory {
        &self.home.memory
    }

    /// Where the buffers are.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Bytes of a packet that one buffer holds.
    pub fn room(&self) -> u32 {
        self.memory().room()
    }

    /// A free buffer with a packet in it; `None` when there is none, or the packet is too long.
    pub fn write(&mut self, packet: &[u8]) -> Option<Frame> {
        let mut frame = self.free.pop()?;
        frame.descriptor.set_options(0);
        if self.home.memory.write(&mut frame, packet) && self.shift(&frame, Place::Free, Place::User) {
            return Some(frame);
        }
        self.free.push(frame);
        None
    }

    /// The bytes in a frame; none of another pool's.
    pub fn bytes<'a>(&'a self, frame: &'a Frame) -> &'a [u8] {
        if self.owns(frame) { self.memory().bytes(frame) } else { &[] }
    }

    /// The bytes in a frame, to change; none of another pool's.
    pub fn bytes_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        if self.owns(frame) { self.memory().bytes_mut(frame) } else { &mut [] }
    }

    /// Puts other bytes into a packet's frames, taking more of the pool or giving some back. `false`, and nothing is
    /// changed, when they do not fit or are more than `longest`.
    #[must_use]
    pub(super) fn rewrite(
        &mut self,
        first: &mut Frame,
        rest: &mut Vec<Frame>,
        bytes: &[u8],
        longest: usize,
    ) -> bool {
        let room = self.room() as usize;
        let needed = bytes.len().div_ceil(room).max(1);
        let fits = (ethernet::HEADER_LEN..=longest).contains(&bytes.len());
        if !fits || needed > 1 + rest.len() + self.free.len() {
            return false;
        }
        while rest.len() + 1 > needed
            && let Some(frame) = rest.pop()
        {
            self.free(frame);
        }
        while rest.len() + 1 < needed
            && let Some(frame) = self.free.pop()
        {
            let _ = self.shift(&frame, Place::Free, Place::User);
            rest.push(frame);
        }
        let mut pieces = bytes.chunks(room);
        let count = rest.len();
        for (index, frame) in std::iter::once(first).chain(rest).enumerate() {
            let piece = pieces.next().unwrap_or_default();
            let _ = self.home.memory.write(frame, piece);
            frame.descriptor.set_options(if index < count { CONTINUED } else { 0 });
        }
        true
    }

    /// Takes a buffer back.
    pub fn free(&mut self, frame: Frame) {
        if self.owns(&frame) && self.shift(&frame, Place::User, Place::Free) {
            self.free.push(frame);
        }
    }

    /// Takes buffers back.
    pub(super) fn free_all(&mut self, frames: &mut Vec<Frame>) {
        let (memory, number) = (&self.home.memory, self.number);
        let mut moving = self.ledger.moving(Place::User, Place::Free);
        frames.retain(|frame| frame.pool == number && moving.shift(memory.index_of(&frame.descriptor)));
        drop(moving);
        self.free.append(frames);
    }

    /// Lends a packet's buffers to another thread; they come back by themselves.
    pub fn lend(&self, frames: impl IntoIterator<Item = Frame>) -> Packet {
        Packet::new(self.home.clone(), frames.into_iter().filter(|frame| self.owns(frame)))
    }

    /// Takes in what other threads gave back.
    pub(super) fn reclaim(&mut self) {
        while let Some(frame) = self.home.returned.pop() {
            self.free(frame);
        }
    }

    /// Free buffers, to be given to the kernel.
    pub(super) fn free_frames(&mut self) -> &mut Vec<Frame> {
        &mut self.free
    }

    /// Takes back what the kernel has sent.
    pub(super) fn take_sent(&mut self, descriptors: &[FrameDesc]) {
        let mut free = std::mem::take(&mut self.free);
        self.shift_all(descriptors, Place::Tx, Place::Free, |frame| free.push(frame));
        self.free = free;
    }

    pub(super) fn shift(&mut self, frame: &Frame, from: Place, to: Place) -> bool {
        self.shift_raw(&frame.descriptor, from, to)
    }

    /// Books a descriptor of the kernel; `false` when it is not ours, or not where it should be.
    pub(super) fn shift_raw(&mut self, descriptor: &FrameDesc, from: Place, to: Place) -> bool {
        self.ledger.shift(self.home.memory.index_of(descriptor), from, to)
    }

    /// Books descriptors of the kernel; hands over those that are ours and where they should be.
    pub(super) fn shift_all(
        &mut self,
        descriptors: &[FrameDesc],
        from: Place,
        to: Place,
        mut moved: impl FnMut(Frame),
    ) {
        let mut moving = self.ledger.moving(from, to);
        for descriptor in descriptors {
            if moving.shift(self.home.memory.index_of(descriptor)) {
                moved(Frame { descriptor: *descriptor, pool: self.number });
            }
        }
    }
}
