//! The frame that is sent: UDP over IPv4, everything valid.

use podwire_core::wire::checksum;

/// Ethernet, IPv4 and UDP headers.
pub const SMALLEST: usize = 42;

/// A frame of `len` bytes.
pub fn udp(to_mac: [u8; 6], source: [u8; 4], destination: [u8; 4], len: usize) -> Vec<u8> {
    let len = len.max(SMALLEST);
    let mut frame = Vec::with_capacity(len);
    frame.extend(to_mac);
    frame.extend([2, 0, 0, 0, 0, 5, 8, 0]);
    let mut header = [0u8; 20];
    header[0] = 0x45;
    header[2..4].copy_from_slice(&((len - 14) as u16).to_be_bytes());
    header[6] = 0x40;
    header[8] = 64;
    header[9] = 17;
    header[12..16].copy_from_slice(&source);
    header[16..20].copy_from_slice(&destination);
    let sum = checksum::full(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(header);
    // Ports, length, and no checksum, which IPv4 allows.
    frame.extend(40_000u16.to_be_bytes());
    frame.extend(9u16.to_be_bytes());
    frame.extend(((len - 34) as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.resize(len, 0);
    frame
}

/// Bytes that VXLAN over IPv4 adds.
pub const VXLAN_OVERHEAD: usize = SMALLEST + 8;

/// A frame of `len` bytes in VXLAN, network 1.
pub fn vxlan(to_mac: [u8; 6], source: [u8; 4], destination: [u8; 4], len: usize) -> Vec<u8> {
    let inner = udp([2, 0, 0, 0, 0, 7], [10, 10, 1, 5], [10, 10, 1, 6], len);
    let mut frame = udp(to_mac, source, destination, VXLAN_OVERHEAD + inner.len());
    frame[36..38].copy_from_slice(&4789u16.to_be_bytes());
    frame[SMALLEST..VXLAN_OVERHEAD].copy_from_slice(&[8, 0, 0, 0, 0, 0, 1, 0]);
    frame[VXLAN_OVERHEAD..].copy_from_slice(&inner);
    frame
}
