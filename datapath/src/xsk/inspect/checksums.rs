//! Checksums of a changed frame. In: a frame whose checksums may be wrong. Out: the same with right ones.

use podwire_core::wire::{Layer, Problem, WireError, ethernet, verify};

/// Header and transport of one packet.
const CHECKSUMS: usize = 2;

/// Writes what the checksums should be. What cannot be read, a fragment, and UDP without a checksum stay as they are.
pub(super) fn complete(frame: &mut [u8]) {
    for _ in 0..CHECKSUMS {
        let Err(error) = check(frame) else { return };
        if error.problem != Problem::Checksum {
            return;
        }
        let (offset, needed) = (error.offset, error.needed);
        let right = match error.layer {
            // CRC32c, the least significant byte first (RFC 9260 appendix A).
            Layer::Sctp => (needed as u32).to_le_bytes().to_vec(),
            // UDP says "none" by zero (RFC 768).
            Layer::Udp if needed == 0 => vec![0xff, 0xff],
            _ => (needed as u16).to_be_bytes().to_vec(),
        };
        match frame.get_mut(offset..offset + right.len()) {
            Some(field) => field.copy_from_slice(&right),
            None => return,
        }
    }
}

fn check(frame: &[u8]) -> Result<verify::Verified, WireError> {
    let (ether_type, at) = ethernet::View::parse(frame, 0)?.network()?;
    verify::checksums(ether_type, frame, at)
}
