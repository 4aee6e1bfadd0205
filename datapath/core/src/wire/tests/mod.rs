//! Tests of the wire formats.

mod checksums;
mod decapsulation;
mod encapsulation;
mod etherparse;
mod golden;
mod refusals;
mod round_trip;
mod samples;
mod short_input;
mod walk;

// Kernel and user space give up on the same packets.
const _: () = assert!(super::ipv6::extension::MAX_HEADERS == crate::abi::limits::EXTENSION_HEADERS);

/// Bytes from hexadecimal digits; blanks between them do not count.
const fn hex<const N: usize>(digits: &str) -> [u8; N] {
    let digits = digits.as_bytes();
    let mut bytes = [0; N];
    let (mut at, mut nibbles) = (0, 0);
    while at < digits.len() {
        if digits[at] != b' ' {
            let value = match digits[at] {
                digit @ b'0'..=b'9' => digit - b'0',
                digit @ b'a'..=b'f' => digit - b'a' + 10,
                _ => panic!("not a hexadecimal digit"),
            };
            bytes[nibbles / 2] = bytes[nibbles / 2] << 4 | value;
            nibbles += 1;
        }
        at += 1;
    }
    assert!(nibbles == 2 * N);
    bytes
}
