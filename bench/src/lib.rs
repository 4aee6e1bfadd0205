//! What the benches share: inputs, a place to run in, traffic, counters, and how results are told.
#![deny(unsafe_code)]

pub mod books;
pub mod calm;
pub mod enclosure;
pub mod frame;
pub mod generator;
pub mod kernel;
pub mod report;
pub mod spread;
pub mod target;

use podwire_core::abi::limits;
use podwire_core::stage::Packet;

/// A frame in memory.
#[derive(Clone, Debug)]
pub struct Frame(pub Vec<u8>);

impl Packet for Frame {
    fn frame_len(&self) -> u32 {
        self.0.len() as u32
    }

    fn read<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        let end = offset.checked_add(N).filter(|end| *end <= limits::HEADER_WINDOW)?;
        self.0.get(offset..end)?.try_into().ok()
    }
}

/// A TCP frame of `len` bytes from 10.10.1.5 to an address, source port 40000.
pub fn tcp_frame(destination: [u8; 4], port: u16, len: usize) -> Frame {
    let mut frame = vec![2, 0, 0, 0, 0, 6, 2, 0, 0, 0, 0, 5, 8, 0];
    frame.extend([0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 10, 1, 5]);
    frame.extend(destination);
    frame.extend(40000u16.to_be_bytes());
    frame.extend(port.to_be_bytes());
    frame.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, 0x10, 0xff, 0xff, 0, 0, 0, 0]);
    frame.resize(len.max(54), 0);
    Frame(frame)
}
