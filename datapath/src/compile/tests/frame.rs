//! Frames as bytes, from the facts that they are to show.

use podwire_core::abi::{Mode, limits};
use podwire_core::stage::{Facts, Packet};

/// A frame that the stages can read.
pub struct Frame(pub Vec<u8>);

impl Packet for Frame {
    fn frame_len(&self) -> u32 {
        self.0.len() as u32
    }

    fn read<const N: usize>(&self, offset: usize) -> Option<[u8; N]> {
        if offset + N > limits::HEADER_WINDOW {
            return None;
        }
        self.0.get(offset..offset + N)?.try_into().ok()
    }
}

impl Frame {
    /// A frame with these addresses, protocol, ports and flags; a fragment after the first if `fragment`.
    pub fn new(facts: &Facts, fragment: bool) -> Self {
        let mut bytes = vec![2; 12];
        bytes.extend(facts.ether_type.to_be_bytes());
        match facts.mode {
            Mode::V4 => {
                bytes.extend([0x45, 0, 0, 60, 0, 0, 0, u8::from(fragment), 64, facts.protocol, 0, 0]);
                bytes.extend(&facts.source.high.to_be_bytes()[..4]);
                bytes.extend(&facts.destination.high.to_be_bytes()[..4]);
            }
            Mode::V6 => {
                let next = if fragment { 44 } else { facts.protocol };
                bytes.extend([0x60, 0, 0, 0, 0, 40, next, 64]);
                for address in [facts.source, facts.destination] {
                    bytes.extend(address.high.to_be_bytes());
                    bytes.extend(address.low.to_be_bytes());
                }
                if fragment {
                    bytes.extend([facts.protocol, 0, 0, 8, 0, 0, 0, 1]);
                }
            }
            Mode::Other => {}
        }
        bytes.extend(facts.source_port.to_be_bytes());
        bytes.extend(facts.destination_port.to_be_bytes());
        bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, facts.tcp_flags, 0, 0, 0, 0, 0, 0]);
        Self(bytes)
    }
}
