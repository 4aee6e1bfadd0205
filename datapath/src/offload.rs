//! Checksums that a sender's offload left unfinished. In: a whole frame. Out: the same with its TCP or UDP
//! checksum complete.
//!
//! A pod's kernel leaves the sum of the pseudo header in the field and the rest to the device (Linux,
//! `CHECKSUM_PARTIAL`). A checksum that is anything else is the packet's own, right or wrong, and stays.

use podwire_core::abi::Mode;
use podwire_core::stage::{Facts, Transport, parse};
use podwire_core::wire::checksum::Sum;
use podwire_core::wire::protocol;

/// Completes the checksum of a frame, if it is unfinished.
pub(crate) fn complete_checksum(frame: &mut [u8]) {
    let facts = parse(&&*frame);
    let Some((start, end, field)) = layout(frame, &facts) else {
        return;
    };
    let length = (end - start) as u32;
    let pseudo = pseudo_header(&facts, length);
    let Some(&[high, low]) = frame.get(field..field + 2) else {
        return;
    };
    if u16::from_be_bytes([high, low]) != pseudo.folded() {
        return;
    }
    frame[field..field + 2].fill(0);
    let sum = pseudo.add_bytes(&frame[start..end]).checksum();
    // UDP says "none" by zero (RFC 768).
    let sum = if sum == 0 && facts.protocol == protocol::UDP { 0xffff } else { sum };
    frame[field..field + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Where the transport header begins, where the packet ends, and where the checksum is.
fn layout(frame: &[u8], facts: &Facts) -> Option<(usize, usize, usize)> {
    if facts.transport != Transport::Ports {
        return None;
    }
    let field = match facts.protocol {
        protocol::TCP => 16,
        protocol::UDP => 6,
        _ => return None,
    };
    let at = facts.network_offset as usize;
    let (start, end) = match facts.mode {
        Mode::V4 => {
            // A fragment's checksum is of the whole datagram.
            let fragment = u16::from_be_bytes([*frame.get(at + 6)?, *frame.get(at + 7)?]);
            if fragment & 0x3fff != 0 {
                return None;
            }
            let total = u16::from_be_bytes([*frame.get(at + 2)?, *frame.get(at + 3)?]);
            (at + usize::from(frame.get(at)? & 0x0f) * 4, at + usize::from(total))
        }
        Mode::V6 if *frame.get(at + 6)? == facts.protocol => {
            let payload = u16::from_be_bytes([*frame.get(at + 4)?, *frame.get(at + 5)?]);
            (at + 40, at + 40 + usize::from(payload))
        }
        _ => return None,
    };
    (start + field + 2 <= end && end <= frame.len()).then_some((start, end, start + field))
}

fn pseudo_header(facts: &Facts, length: u32) -> Sum {
    let mut sum = Sum::ZERO;
    for key in [facts.source, facts.destination] {
        sum = sum.add_bytes(&key.high.to_be_bytes()).add_bytes(&key.low.to_be_bytes());
    }
    sum.add_bytes(&length.to_be_bytes()).add_bytes(&[0, facts.protocol])
}

#[cfg(test)]
mod tests {
    use super::complete_checksum;

    /// An IPv4 UDP frame whose checksum field holds `field`.
    fn frame(field: [u8; 2]) -> Vec<u8> {
        let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
        frame.extend([0x45, 0, 0, 33, 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([0x10, 0, 0x20, 0, 0, 13]);
        frame.extend(field);
        frame.extend(*b"hello");
        frame
    }

    /// The sum of the pseudo header: 0a00 + 0001 + 0a00 + 0002 + 0011 + 000d.
    const PSEUDO: [u8; 2] = [0x14, 0x21];

    #[test]
    fn what_offload_left_is_completed() {
        let mut unfinished = frame(PSEUDO);
        complete_checksum(&mut unfinished);
        // By hand: pseudo 1421, header 1000 + 2000 + 000d, payload 6865 + 6c6c + 6f00; folded and inverted.
        let sum: u32 = 0x1421 + 0x1000 + 0x2000 + 0x000d + 0x6865 + 0x6c6c + 0x6f00;
        let folded = (sum & 0xffff) + (sum >> 16);
        let expected = !(folded as u16);
        assert_eq!(unfinished[40..42], expected.to_be_bytes());
    }

    #[test]
    fn a_packets_own_checksum_stays() {
        for field in [[0xde, 0xad], [0, 0]] {
            let mut own = frame(field);
            complete_checksum(&mut own);
            assert_eq!(own, frame(field));
        }
    }
}
