//! Packets that became traced, as they were before that. In: the ring of captures. Out: [`Capture`]s.

use aya::maps::{MapData, RingBuf};
use podwire_core::abi::CaptureRow;

use super::turn::Turn;
use crate::error::Error;
use crate::maps::{self, read_head};
use crate::pins::Pins;
use crate::relay::clock_offset;
use crate::vlan::{TAG_LEN, with_tag};

/// A packet that became traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capture {
    /// The trace's number.
    pub trace: u32,
    /// As [`super::Observation::identity`].
    pub identity: u32,
    /// When, in nanoseconds since 1970 by the node's clock.
    pub time_ns: u64,
    /// Length of the frame in bytes.
    pub length: u32,
    /// Its first bytes, from the Ethernet header on; a VLAN tag that the kernel keeps beside a frame is in its place.
    pub bytes: Vec<u8>,
}

/// The ring.
pub struct Captures {
    ring: RingBuf<MapData>,
    turn: Turn,
}

impl Captures {
    pub(super) fn open(pins: &Pins, turn: &Turn) -> Result<Self, Error> {
        let mut captures = Self { ring: maps::reopen_ring(pins, "CAPTURES")?, turn: turn.clone() };
        // What an earlier run left.
        while captures.ring.next().is_some() {}
        Ok(captures)
    }
}

/// Those that wait. A packet is here before anything is told of it.
impl Iterator for Captures {
    type Item = Capture;

    fn next(&mut self) -> Option<Capture> {
        let Self { ring, turn } = self;
        turn.take(|| {
            loop {
                let record = ring.next()?;
                if let Some(capture) = read(&record) {
                    return Some(capture);
                }
            }
        })
        .flatten()
    }
}

fn read(record: &[u8]) -> Option<Capture> {
    let row: CaptureRow = read_head(record)?;
    let frame = record.get(size_of::<CaptureRow>()..)?.get(..row.captured as usize)?;
    let bytes = match row.vlan {
        0 => frame.to_vec(),
        tag => with_tag(tag, frame)?,
    };
    Some(Capture {
        trace: row.trace,
        identity: row.identity,
        time_ns: row.time_ns.wrapping_add(clock_offset()),
        length: row.len + if row.vlan == 0 { 0 } else { TAG_LEN },
        bytes,
    })
}
