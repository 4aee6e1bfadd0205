//! A mirrored frame on its way to a sink.

use bytes::Bytes;
use podwire_core::wire::erspan::Direction;

/// The bytes of a frame: the source's own, or kept.
#[derive(Clone, Debug)]
pub enum Payload<'a> {
    /// Lies in the source's memory until the sink returns.
    Borrowed(&'a [u8]),
    /// Owned, shared without a copy.
    Kept(Bytes),
}

/// A mirrored frame, from its Ethernet header on.
#[derive(Clone, Debug)]
pub struct Frame<'a> {
    /// When it reached this host, in nanoseconds since 1970.
    pub time: u64,
    /// Its number in the session, where the tunnel has one.
    pub sequence: Option<u32>,
    /// Its direction at the mirrored port, where ERSPAN III says so.
    pub direction: Option<Direction>,
    /// Whether the sender cut it.
    pub truncated: bool,
    /// Its bytes.
    pub payload: Payload<'a>,
}

impl Frame<'_> {
    /// The bytes, for as long as the sink runs.
    #[inline]
    pub fn data(&self) -> &[u8] {
        match &self.payload {
            Payload::Borrowed(data) => data,
            Payload::Kept(data) => data,
        }
    }

    /// The bytes, to keep. Copies only what lies in the source's memory.
    pub fn to_bytes(&self) -> Bytes {
        match &self.payload {
            Payload::Borrowed(data) => Bytes::copy_from_slice(data),
            Payload::Kept(data) => data.clone(),
        }
    }

    /// The frame, to keep.
    pub fn keep(&self) -> Frame<'static> {
        let Self { time, sequence, direction, truncated, .. } = *self;
        Frame { time, sequence, direction, truncated, payload: Payload::Kept(self.to_bytes()) }
    }
}
